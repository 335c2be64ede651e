//! What every task's database begins with: the migrations, or what a command of the suite has set up.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use super::Postgres;
use super::sql::{Connection, SqlError, line_of};
use crate::service::host::Host;
use crate::suite::Fill;

/// The database that tasks' databases are copied from, where there is something to copy.
const TEMPLATE: &str = "xtask_template";

/// Migrations and setup have the limit of the start, which the runner keeps; this only ends what it has forgotten.
const LIMIT: Duration = Duration::from_secs(24 * 3600);

/// The name of the database to copy. Nobody can connect to either: `template0` refuses by itself.
pub fn name(fill: &Fill) -> &'static str {
    if *fill == Fill::Empty { "template0" } else { TEMPLATE }
}

/// Makes the template and closes it: nobody connects to it, and only who insists can drop it. Errors name the file and
/// the line that would not do, or the command.
pub fn fill(postgres: &mut Postgres, host: &Host) -> anyhow::Result<()> {
    let fill = postgres.service.fill.clone();
    if fill == Fill::Empty {
        return Ok(());
    }
    postgres.create(TEMPLATE, "template0")?;
    match &fill {
        Fill::Empty => {}
        Fill::Migrations(folder) => {
            let connection = Connection::open(&postgres.socket(), TEMPLATE, LIMIT, Some(host.line()?))?;
            migrate(connection, host, folder)?;
        }
        Fill::Setup(command) => set_up(postgres, host, command)?,
    }
    postgres.run(&format!("ALTER DATABASE {TEMPLATE} WITH ALLOW_CONNECTIONS false IS_TEMPLATE true"))?;
    // A database with sessions cannot be copied; what setup left is dead, but the server may not have noticed yet.
    postgres
        .run(&format!("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{TEMPLATE}'"))?;
    Ok(())
}

fn migrate(mut connection: Connection, host: &Host, folder: &str) -> anyhow::Result<()> {
    let entries =
        fs::read_dir(host.spec.root.join(folder)).with_context(|| format!("migrations: cannot read {folder}"))?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<std::io::Result<Vec<_>>>()?;
    names.retain(|name| name.ends_with(".sql"));
    names.sort();
    // The way back is not part of the way.
    let undoes =
        |name: &str| name.strip_suffix(".down.sql").is_some_and(|stem| names.contains(&format!("{stem}.up.sql")));
    ensure!(!names.is_empty(), "migrations: {folder} has no .sql file");
    for name in names.iter().filter(|name| !undoes(name)) {
        let path = Path::new(folder).join(name);
        let shown = path.display();
        let text = fs::read_to_string(host.spec.root.join(&path))
            .with_context(|| format!("migrations: cannot read {shown}"))?;
        let sql = text.strip_prefix('\u{feff}').unwrap_or(&text);
        if let Some(line) = sql.lines().position(is_marker) {
            bail!(
                "{shown}:{}: this file is for a tool that runs a part of it; use that tool: setup = \"COMMAND\"",
                line + 1
            );
        }
        let answer = match connection.run(sql) {
            Ok(answer) => answer,
            Err(error) => match error.downcast_ref::<SqlError>() {
                Some(error) => bail!("{shown}:{}: {error}{}", line_of(sql, error), hint(sql)),
                None => return Err(error.context(format!("{shown}: the server was lost"))),
            },
        };
        ensure!(!answer.open_transaction, "{shown}: begins a transaction and does not end it");
        // What a file sets for its session (search_path …) is not for the next one.
        connection.run("DISCARD ALL")?;
        host.still_wanted()?;
    }
    Ok(())
}

// goose and dbmate keep both ways in one file.
fn is_marker(line: &str) -> bool {
    let comment = line.trim_start().strip_prefix("--").map(str::trim_start).unwrap_or_default();
    comment.starts_with("+goose Down") || comment.starts_with("migrate:down")
}

fn hint(sql: &str) -> &'static str {
    let of_psql = |line: &str| line.starts_with('\\') || line.to_ascii_lowercase().trim_end().ends_with("from stdin;");
    match sql.lines().any(of_psql) {
        true => "; lines that only psql understands need setup = \"psql --set ON_ERROR_STOP=1 --file …\"",
        false => "",
    }
}

fn set_up(postgres: &Postgres, host: &Host, words: &[String]) -> anyhow::Result<()> {
    let [program, arguments @ ..] = words else { bail!("setup is an empty command") };
    let mut command = Command::new(program);
    command.args(arguments).current_dir(&host.spec.root);
    for (name, value) in postgres.env(TEMPLATE) {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let output = host.ask(&mut command, LIMIT).with_context(|| format!("setup: {}", words.join(" ")))?;
    host.log(&output);
    Ok(())
}
