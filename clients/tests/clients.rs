//! DATABASE_URL and the PG* variables of a task, as the clients that people use understand them. Every answer is the
//! server's own, and all of them must come from the same server and database.

use std::process::Command;

/// What the server says of itself: version, data folder, the database, and the server's process.
const WHO: &str = "select version(), current_setting('data_directory'), current_database()::text, \
                   (select pid from pg_stat_activity where backend_type = 'checkpointer')::text";

fn url() -> String {
    std::env::var("DATABASE_URL")
        .expect("DATABASE_URL: this test is a task of the suite, run it with cargo xtask verify")
}

fn by_postgres() -> Vec<String> {
    let mut client = postgres::Client::connect(&url(), postgres::NoTls).expect("postgres connects");
    let row = client.query_one(WHO, &[]).expect("postgres asks");
    (0..4).map(|column| row.get(column)).collect()
}

fn by_sqlx() -> Vec<String> {
    use sqlx::{Connection, Row};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut connection = sqlx::PgConnection::connect(&url()).await.expect("sqlx connects");
        let row = sqlx::query(WHO).fetch_one(&mut connection).await.expect("sqlx asks");
        (0..4).map(|column| row.get(column)).collect()
    })
}

fn by_psql(arguments: &[&str]) -> Vec<String> {
    let out = Command::new("psql").args(["-XAt", "-F", "\t", "-c", WHO]).args(arguments).output().expect("psql runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).trim_end().split('\t').map(str::to_owned).collect()
}

#[test]
fn every_client_finds_the_same_fresh_database() {
    let who = by_postgres();
    assert!(who[0].starts_with("PostgreSQL 1"), "{who:?}");
    assert!(!std::path::Path::new(&who[1]).starts_with("/var/lib"), "a server of the machine: {who:?}");
    assert_eq!(by_sqlx(), who);
    assert_eq!(by_psql(&[&url()]), who, "psql by DATABASE_URL");
    assert_eq!(by_psql(&[]), who, "psql by PGHOST and the others");
    let mut client = postgres::Client::connect(&url(), postgres::NoTls).expect("postgres connects");
    let tables = client.query("select 1 from pg_class where relnamespace = 'public'::regnamespace", &[]);
    assert!(tables.expect("postgres asks").is_empty(), "the database is not fresh");
}
