//! The flags as typed, and from them the requests as meant. `--help` is written here.

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::command;
use crate::lock::Scope;
use crate::name::{Caller, Name, TaskName};
use crate::plan::Selection;
use crate::printer;
use crate::run::order::Format;
use crate::time::{Clocks, parse_duration};
use crate::verdict::Exit;

const EXIT_CODES: &str = "\
Exit codes: 0 passed or accepted, 1 a task failed, 2 wrong use or suite error, 3 a deadline passed,
            4 no lock in time, 5 lock port unusable, 6 receipt refused, 7 no verdict to rely on,
            130/143/129 cancelled by INT/TERM/HUP";

const VERIFY_EXAMPLES: &str = "\
Exit codes: 0 passed, 1 a task failed, 2 wrong use or suite error, 3 a deadline passed, 4 no lock in time,
            5 lock port unusable, 7 no verdict to rely on, 130/143/129 cancelled by INT/TERM/HUP

Examples:
  cargo xtask verify                          before you push
  cargo xtask verify --only lint,fmt          some tasks and what they need; the receipt is partial
  exec cargo xtask verify --outer 62m         in CI (exec: so that the runner's signals reach it)";

/// Checks a repository: takes its turn on the workstation, ends inside hard deadlines, leaves a receipt
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Queue for the workstation lock, run the suite under its deadlines, write a receipt
    #[command(after_help = VERIFY_EXAMPLES)]
    Verify(VerifyArgs),
    /// Show tasks, limits and what they mean for the limits of callers; takes no lock
    Plan(PlanArgs),
    /// Run the whole suite on the tag's commit and sign its receipt and artifacts, or sign nothing
    Release(ReleaseArgs),
    /// The gate: judge a receipt and say every reason against it; takes no lock
    CheckReceipt(CheckReceiptArgs),
    /// Draw receipts as one HTML file; takes no lock
    Report(ReportArgs),
    /// Look at the workstation lock, or run any command under it
    #[command(subcommand)]
    Lock(LockCommand),
    /// Put xtask into another repository
    Adopt(AdoptArgs),
    /// The second process of a run; started by the first
    #[command(hide = true)]
    InternalRunner {
        /// The descriptor that the first process hands over
        lifeline: i32,
    },
    /// The process of a service; started by the runner
    #[command(hide = true)]
    InternalService,
}

/// When to use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ColorArg {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// How to say things.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FormatArg {
    /// Text on stderr.
    Human,
    /// One JSON object a line on stdout.
    Json,
}

/// Callers of `verify`; `release` is a command of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CallerArg {
    /// A developer.
    Local,
    /// A CI job.
    Ci,
}

impl From<CallerArg> for Caller {
    fn from(arg: CallerArg) -> Self {
        match arg {
            CallerArg::Local => Self::Local,
            CallerArg::Ci => Self::Ci,
        }
    }
}

/// Flags of `verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Who asks: local, ci [default: ci where CI is set, else local]
    #[arg(long, value_name = "CALLER", hide_possible_values = true, help_heading = "What to run")]
    pub caller: Option<CallerArg>,
    /// The suite file, relative to the repository's root
    #[arg(long, value_name = "PATH", default_value = "ci/suite.toml", help_heading = "What to run")]
    pub suite: PathBuf,
    /// A profile of the suite; the receipt is partial
    #[arg(long, value_name = "NAME", value_parser = name, help_heading = "What to run")]
    pub profile: Option<Name>,
    /// Just these tasks and what they need; the receipt is partial
    #[arg(long, value_name = "TASK,...", value_delimiter = ',', value_parser = name, help_heading = "What to run")]
    pub only: Option<Vec<TaskName>>,
    /// How long to wait for the locks; 0s is one try [default: the suite's]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, help_heading = "Limits")]
    pub queue: Option<Duration>,
    /// The limit that this caller sets around us; refuse to start if it is too short [env: XTASK_OUTER]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, help_heading = "Limits")]
    pub outer: Option<Duration>,
    /// Sign the receipt with this key [env: XTASK_SIGNING_KEY]
    #[arg(long, value_name = "PATH", help_heading = "Output")]
    pub key: Option<PathBuf>,
    /// human (text on stderr), json (one event a line on stdout)
    #[arg(long, value_name = "F", default_value = "human", hide_possible_values = true, help_heading = "Output")]
    pub message_format: FormatArg,
    /// auto, always, never
    #[arg(long, value_name = "WHEN", default_value = "auto", hide_possible_values = true, help_heading = "Output")]
    pub color: ColorArg,
    /// Also write JUnit XML there
    #[arg(long, value_name = "PATH", help_heading = "Output")]
    pub junit: Option<PathBuf>,
}

/// Flags of `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// A profile of the suite
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub profile: Option<Name>,
    /// CI files whose marked limits (xtask:outer=verify, xtask:outer=release) are compared with the plan
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub check_outer: Vec<PathBuf>,
    /// human, json
    #[arg(long, value_name = "F", default_value = "human", hide_possible_values = true)]
    pub message_format: FormatArg,
    /// The suite file, relative to the repository's root
    #[arg(long, value_name = "PATH", default_value = "ci/suite.toml")]
    pub suite: PathBuf,
}

/// Flags of `release`.
#[derive(Debug, Args)]
pub struct ReleaseArgs {
    /// The tag; it must be HEAD
    pub tag: String,
    /// A declared output to release [default: every declared output]
    #[arg(long, value_name = "PATH")]
    pub artifact: Vec<PathBuf>,
    /// The signing key: a private key, or a public one whose private part an agent holds [env: XTASK_SIGNING_KEY]
    #[arg(long, value_name = "PATH")]
    pub key: Option<PathBuf>,
    /// How long to wait for the locks; 0s is one try [default: the suite's]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub queue: Option<Duration>,
    /// The limit that this caller sets around us; refuse to start if it is too short [env: XTASK_OUTER]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub outer: Option<Duration>,
}

/// Flags of `check-receipt`.
#[derive(Debug, Args)]
pub struct CheckReceiptArgs {
    /// A receipt's path, or a tag (receipts/TAG/receipt.json) [default: the newest receipt of HEAD]
    #[arg(value_name = "PATH|TAG", value_parser = NonEmptyStringValueParser::new())]
    pub receipt: Option<String>,
    /// The commit that it must be for [default: the tag's, else HEAD]
    #[arg(long, value_name = "REV")]
    pub commit: Option<String>,
    /// A file that must be the artifact of that name
    #[arg(long, value_name = "PATH")]
    pub artifact: Vec<PathBuf>,
    /// The oldest that is accepted [default: the suite's]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub max_age: Option<Duration>,
    /// Judge age and the key's validity at the end of the run; revocation still now
    #[arg(long)]
    pub archived: bool,
    /// Signers come from this commit, and no task dropped, no limit raised, no signer added since it
    #[arg(long, value_name = "REV")]
    pub baseline: Option<String>,
    /// The allowed signers file; revoked_keys lies beside it
    #[arg(long, value_name = "PATH")]
    pub signers: Option<PathBuf>,
    /// Accept a receipt without a signature
    #[arg(long)]
    pub unsigned: bool,
    /// The suite file, relative to the repository's root; signers lie beside it
    #[arg(long, value_name = "PATH", default_value = "ci/suite.toml", value_parser = NonEmptyStringValueParser::new())]
    pub suite: String,
    /// human, json
    #[arg(long, value_name = "F", default_value = "human", hide_possible_values = true)]
    pub message_format: FormatArg,
}

/// Flags of `report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Receipts [default: the newest 200 of this checkout]
    pub receipts: Vec<PathBuf>,
    /// Where to write the HTML [default: target/xtask-report.html in the repository]
    #[arg(long, value_name = "PATH")]
    pub output: Option<PathBuf>,
    /// Also write the newest run as Chrome trace JSON (Perfetto) there
    #[arg(long, value_name = "PATH")]
    pub trace: Option<PathBuf>,
}

/// `lock status` and `lock run`.
#[derive(Debug, Subcommand)]
pub enum LockCommand {
    /// Who holds the locks, since when, until when at the latest, and how many wait
    Status(LockStatusArgs),
    /// Run a command while holding a lock; its exit code, or 120 + ours
    Run(LockRunArgs),
}

/// Flags of `lock status`.
#[derive(Debug, Args)]
pub struct LockStatusArgs {
    /// Exit 4 when held and 5 when something foreign is there
    #[arg(long)]
    pub check: bool,
    /// human, json
    #[arg(long, value_name = "F", default_value = "human", hide_possible_values = true)]
    pub message_format: FormatArg,
}

/// Which lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ScopeArg {
    /// The whole machine.
    Workstation,
    /// This folder.
    Worktree,
}

/// Flags of `lock run`.
#[derive(Debug, Args)]
pub struct LockRunArgs {
    /// Which lock to hold: workstation (the machine), worktree (this folder)
    #[arg(long, value_name = "SCOPE", default_value = "workstation", hide_possible_values = true)]
    pub scope: ScopeArg,
    /// How long to wait for it; 0s is one try
    #[arg(long, value_name = "DURATION", default_value = "30m", value_parser = parse_duration)]
    pub queue: Duration,
    /// How long the command may run
    #[arg(long, value_name = "DURATION", default_value = "30m", value_parser = parse_duration)]
    pub deadline: Duration,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Flags of `adopt`.
#[derive(Debug, Args)]
pub struct AdoptArgs {
    /// The repository to put xtask into
    pub path: PathBuf,
    /// Name every file that would be touched, touch none
    #[arg(long)]
    pub dry_run: bool,
}

fn name(text: &str) -> Result<Name, crate::name::BadName> {
    Name::parse(text)
}

/// Parses the command line, does what it says, and gives the exit code. `requested` is the program's first moment: the queue
/// budget counts from it.
pub fn main(requested: Clocks) -> Exit {
    // If it is refused, a full file ends this process as it would any other.
    let _ = crate::interrupt::survive_full_files();
    let (exit, holds_locks) = match Cli::try_parse() {
        Ok(cli) => {
            let holds_locks = matches!(cli.command, Command::InternalRunner { .. });
            let of_lock_run = matches!(cli.command, Command::Lock(LockCommand::Run(_)));
            let has_keeper = matches!(cli.command, Command::InternalRunner { .. } | Command::InternalService);
            let done = match catch_unwind(AssertUnwindSafe(|| dispatch(cli.command, requested))) {
                Ok(done) => done,
                // Whoever waits for it says what became of it.
                Err(panic) if has_keeper => resume_unwind(panic),
                Err(_) => Ok(own_trouble(of_lock_run)),
            };
            let refused = |error| {
                let why = format!("{error:#}");
                crate::command::say(&format!("error: {why}\nexit code {}", Exit::Usage.code()));
                command::refusal::tell(std::env::args_os().skip(1).collect(), &why, requested);
                Exit::Usage
            };
            (done.unwrap_or_else(refused), holds_locks)
        }
        Err(error) => (unfit(&error, requested), false),
    };
    // Whoever reads may take all the time in the world, but not with a lock held.
    if !holds_locks {
        crate::sys::end_by_signals();
    }
    printer::settle(holds_locks.then_some(READERS));
    let Some(why) = printer::lost() else { return exit };
    let exit = unsaid(&why, exit.max(Exit::NoVerdict));
    printer::settle(holds_locks.then_some(READERS));
    exit
}

// A mistake of ours, or a system that has no thread to give, which makes the libraries panic.
fn own_trouble(of_lock_run: bool) -> Exit {
    let exit = if of_lock_run { Exit::NoVerdict.of_lock_run() } else { Exit::NoVerdict };
    let text =
        "error: what is said above is trouble of xtask's own, and nothing of what was asked for may be relied on";
    crate::command::say(&format!("{text}\nexit code {}", exit.code()));
    exit
}

// A check that nobody could be told of is none.
fn unsaid(why: &str, exit: Exit) -> Exit {
    crate::command::say(&format!("error: {why}\nexit code {}", exit.code()));
    exit
}

/// How long whoever holds locks waits at its end for a reader of its words.
const READERS: Duration = Duration::from_millis(500);

// A command line that clap cannot read, or one that asks for help.
fn unfit(error: &clap::Error, requested: Clocks) -> Exit {
    // clap sends help and version to stdout and errors to stderr; a closed pipe is no reason to panic.
    let printed = error.print();
    if !error.use_stderr() {
        return match printed {
            Err(why) if why.kind() != std::io::ErrorKind::BrokenPipe => {
                unsaid(&format!("stdout cannot be written: {why}"), Exit::NoVerdict)
            }
            _ => Exit::Passed,
        };
    }
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let lock_run = args.len() >= 2 && args[..2] == ["lock", "run"];
    let exit = if lock_run { Exit::Usage.of_lock_run() } else { Exit::Usage };
    command::say(&format!("exit code {}", exit.code()));
    let why = error.to_string();
    command::refusal::tell(args, why.strip_prefix("error: ").unwrap_or(&why), requested);
    exit
}

fn dispatch(command: Command, requested: Clocks) -> anyhow::Result<Exit> {
    match command {
        Command::Verify(args) => command::verify::run(verify(args, requested)),
        Command::Lock(LockCommand::Status(args)) => {
            command::lock::status(args.check, args.message_format == FormatArg::Json)
        }
        Command::InternalRunner { lifeline } => command::runner::run(lifeline),
        Command::CheckReceipt(args) => command::check_receipt::run(&check_receipt(args)),
        Command::Plan(args) => command::plan::run(&command::plan::Request {
            suite: args.suite,
            selection: Selection { only: Vec::new(), profile: args.profile },
            check_outer: args.check_outer,
            json: args.message_format == FormatArg::Json,
        }),
        Command::Release(args) => command::release::run(release(args, requested)),
        Command::Lock(LockCommand::Run(args)) => Ok(command::lock::run(&command::lock::Request {
            requested,
            scope: match args.scope {
                ScopeArg::Workstation => Scope::Workstation,
                ScopeArg::Worktree => Scope::Worktree,
            },
            queue: args.queue,
            deadline: args.deadline,
            command: args.command,
        })),
        Command::Adopt(args) => {
            command::adopt::run(&command::adopt::Request { path: args.path, dry_run: args.dry_run })
        }
        Command::Report(args) => command::report::run(&command::report::Request {
            receipts: args.receipts,
            output: args.output,
            trace: args.trace,
        }),
        Command::InternalService => crate::service::host::main().map(|()| Exit::Passed),
    }
}

fn verify(args: VerifyArgs, requested: Clocks) -> command::verify::Request {
    let in_ci = std::env::var_os("CI").is_some_and(|ci| !ci.is_empty() && ci != "false");
    let caller = args.caller.map_or(if in_ci { Caller::Ci } else { Caller::Local }, Caller::from);
    let colour = match args.color {
        ColorArg::Auto => None,
        ColorArg::Always => Some(true),
        ColorArg::Never => Some(false),
    };
    command::verify::Request {
        requested,
        caller,
        suite: args.suite,
        selection: Selection { only: args.only.unwrap_or_default(), profile: args.profile },
        queue: args.queue,
        outer: args.outer,
        format: Format { json: args.message_format == FormatArg::Json, colour },
        junit: args.junit,
        key: args.key.or_else(key_of_env),
        command: "cargo xtask verify".to_owned(),
    }
}

// Empty as CI leaves it where a job may not see the secret: no key. An empty --key is a mistake, and clap says so.
fn key_of_env() -> Option<PathBuf> {
    std::env::var_os("XTASK_SIGNING_KEY").filter(|path| !path.is_empty()).map(PathBuf::from)
}

fn release(args: ReleaseArgs, requested: Clocks) -> command::release::Request {
    command::release::Request {
        requested,
        tag: args.tag,
        artifacts: args.artifact,
        key: args.key.or_else(key_of_env),
        queue: args.queue,
        outer: args.outer,
    }
}

fn check_receipt(args: CheckReceiptArgs) -> command::check_receipt::Request {
    command::check_receipt::Request {
        receipt: args.receipt,
        commit: args.commit,
        artifacts: args.artifact,
        max_age: args.max_age,
        archived: args.archived,
        baseline: args.baseline,
        signers: args.signers,
        unsigned: args.unsigned,
        suite: args.suite,
        json: args.message_format == FormatArg::Json,
    }
}
