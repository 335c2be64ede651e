//! What a task's database begins with, and what is said where that cannot be made.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use xtask::suite::Fill;

use crate::postgres::{Server, ask, processes_in, service};
use crate::world::{Folder, until};

/// A host whose migrations are these files.
fn migrations(files: &[(&str, &str)]) -> Server {
    let folder = Folder::new();
    fs::create_dir_all(folder.path().join("repo/db/migrations")).unwrap();
    for (name, text) in files {
        fs::write(folder.path().join("repo/db/migrations").join(name), text).unwrap();
    }
    Server::start_in(folder, service(Fill::Migrations("db/migrations".to_owned())), |_| {})
}

fn setup(words: &[&str]) -> Server {
    let words = words.iter().map(|word| (*word).to_owned()).collect();
    Server::start_in(Folder::new(), service(Fill::Setup(words)), |_| {})
}

/// The failure, without the server's advice behind it.
#[track_caller]
fn fails(files: &[(&str, &str)]) -> String {
    let mut server = migrations(files);
    let why = server.failure();
    server.stop();
    why
}

#[test]
fn files_run_in_name_order_and_the_way_back_is_left_out() {
    let mut server = migrations(&[
        ("0002_fill.up.sql", "insert into t values (2); insert into t values (3);"),
        ("0002_fill.down.sql", "delete from t;"),
        ("0001_make.sql", "\u{feff}set search_path to pg_catalog; create table public.t (x int);"),
        ("0003_more.sql", "create index concurrently on t (x)"), // only outside of a transaction
        ("README.md", "no sql"),
    ]);
    let env = server.database("a");
    assert_eq!(ask(&env, "select x from t order by x"), ["2", "3"]);
    server.stop();
}

#[test]
fn a_wrong_name_is_shown_with_file_and_line() {
    let why = fails(&[("1.sql", "create table t (x int);\n\ninsert into t\n  values (1, ü2);\n")]);
    assert!(why.starts_with("db/migrations/1.sql:4: column \"ü2\" does not exist (SQLSTATE 42703)"), "{why}");
}

#[test]
fn an_error_without_a_position_is_shown_at_the_statement_that_failed() {
    let sql = "create table t (x int primary key);\n\
               -- a comment; with a semicolon\n\
               create function f() returns int language plpgsql as $$\nbegin\n  return 1; -- ;\nend $$;\n\
               create function g() returns int begin atomic\n  select case when true then 1 end;\n  select 2;\nend;\n\
               insert into t values (1);\n\
               insert into t\n  values (length(';')); /* ; /* ; */ */\n\
               insert into t values (2);\n";
    let why = fails(&[("0.sql", "select 1"), ("1.sql", sql)]);
    assert!(why.starts_with("db/migrations/1.sql:12: duplicate key value violates"), "{why}");
    assert!(why.contains("(SQLSTATE 23505); Key (x)=(1) already exists"), "{why}");
}

#[test]
fn a_transaction_that_stays_open_is_refused() {
    let why = fails(&[("1.sql", "begin; create table t (x int);"), ("2.sql", "select 1")]);
    assert_eq!(why, "db/migrations/1.sql: begins a transaction and does not end it");
}

#[test]
fn files_of_tools_that_run_a_part_of_them_are_refused() {
    let why = fails(&[("1.sql", "-- +goose Up\ncreate table t (x int);\n-- +goose Down\ndrop table t;\n")]);
    assert_eq!(
        why,
        "db/migrations/1.sql:3: this file is for a tool that runs a part of it; use that tool: setup = \"COMMAND\""
    );
}

#[test]
fn what_only_psql_understands_says_so() {
    let why = fails(&[("1.sql", "create table t (x int);\ncopy t from stdin;\n1\n\\.\n")]);
    assert!(why.starts_with("db/migrations/1.sql:3: syntax error") && why.contains("setup = \"psql"), "{why}");
    let why = fails(&[("1.sql", "create table t (x int); copy t from stdin;")]);
    assert!(why.contains("1.sql:1: COPY from stdin failed") && why.contains("setup = \"psql"), "{why}");
}

#[test]
fn a_folder_without_migrations_is_an_error() {
    assert_eq!(fails(&[("1.sqlx", "")]), "migrations: db/migrations has no .sql file");
}

#[test]
fn a_reason_stays_small() {
    let why = fails(&[("1.sql", "do $$ begin raise exception '%', repeat('ü', 3000000); end $$")]);
    assert!(why.starts_with("db/migrations/1.sql:1: üü") && why.ends_with(" …"), "{}", why.len());
    assert!(why.len() < 4_000, "{}", why.len());
}

#[test]
fn what_migrations_set_for_their_database_holds_in_every_copy() {
    let set = "create role app; create role other; do $$ declare me text := quote_ident(current_database()); begin
        execute 'alter database ' || me || $q$ set work_mem = '7MB'$q$;
        execute 'alter database ' || me || ' set search_path = app, public';
        execute 'alter role app in database ' || me || $q$ set work_mem = '9MB'$q$;
        execute 'revoke connect on database ' || me || ' from public';
        execute 'alter database ' || me || ' owner to app';
        execute 'alter database ' || me || ' connection limit 77';
    end $$";
    let mut server = migrations(&[("1.sql", set)]);
    for task in ["a", "b"] {
        let env = server.database(task);
        assert_eq!(ask(&env, "show work_mem; show search_path"), ["7MB", "app, public"]);
        let of_app = "select unnest(setconfig) from pg_db_role_setting where setrole = 'app'::regrole
            and setdatabase = (select oid from pg_database where datname = current_database())";
        assert_eq!(ask(&env, of_app), ["work_mem=9MB"]);
        let rights = "select pg_get_userbyid(datdba), datconnlimit, has_database_privilege('other', oid, 'connect'),
            datallowconn from pg_database where datname = current_database()";
        assert_eq!(ask(&env, rights), ["app|77|f|t"]);
    }
    server.stop();
}

#[test]
fn a_run_that_is_over_ends_the_migrations() {
    let files: Vec<(String, &str)> = (0..400).map(|n| (format!("{n:03}.sql"), "select pg_sleep(0.3)")).collect();
    let open = Folder::new();
    fs::set_permissions(open.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let begun = open.path().join("begun");
    let first = format!("copy (select 1) to '{}'", begun.display());
    let mut files: Vec<(&str, &str)> = files.iter().map(|(name, sql)| (name.as_str(), *sql)).collect();
    files.insert(0, ("000-first.sql", &first));
    let mut server = migrations(&files);
    until("migrations to begin", || begun.exists());
    let began = std::time::Instant::now();
    server.stop();
    assert!(began.elapsed() < std::time::Duration::from_secs(60), "{:?} of 120s", began.elapsed());
}

#[test]
fn setup_runs_once_in_the_repository_against_the_template() {
    let script =
        "psql -XAtqc 'create table t as select 7 x' \"$DATABASE_URL\" && pwd >>once && psql -c 'select x from t'";
    let mut server = setup(&["sh", "-c", script]);
    for task in ["a", "b"] {
        let env = server.database(task);
        assert_eq!(ask(&env, "select x from t"), ["7"]);
    }
    let repo = server.folder.path().join("repo");
    assert_eq!(fs::read_to_string(repo.join("once")).unwrap(), format!("{}\n", repo.display()));
    server.stop();
}

#[test]
fn setup_that_fails_is_shown_with_its_last_lines() {
    let mut server = setup(&["sh", "-c", "echo first; echo 'the reason' >&2; exit 3"]);
    let why = server.failure();
    assert!(why.starts_with("setup: sh -c ") && why.ends_with("(exit status: 3): first; the reason"), "{why}");
    server.stop();
}

#[test]
fn what_setup_leaves_running_is_ended_and_does_not_keep_the_template_busy() {
    let left = "sleep 1000 & psql -c 'select pg_sleep(1000)' >/dev/null 2>&1 & sleep 0.3";
    let mut server = setup(&["sh", "-c", left]);
    let env = server.database("a");
    assert_eq!(ask(&env, "select count(*) from pg_stat_activity where datname like '%template%'"), ["0"]);
    assert_eq!(processes_in(&server.folder.path().join("repo")), Vec::<String>::new());
    server.stop();
}
