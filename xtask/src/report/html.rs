//! Receipts as one HTML file that needs nothing beside it: no scripts, no fonts, no network. Light or dark as the reader's
//! system is.

use std::fmt::Write as _;

use super::history;
use super::markup::escape;
use super::timeline::{self, Needs, human, percent};
use crate::digest::short;
use crate::receipt::statement::{Answer, Extent, Predicate, Receipt, Task};
use crate::time::utc;
use crate::verdict::{Cause, Verdict, Word};

/// How every page of ours begins.
pub const BEGINNING: &str = "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
    <meta name=\"generator\" content=\"xtask\">\n";

const STYLE: &str = "
:root{color-scheme:light dark;--page:#fff;--ink:#1f2328;--soft:#59636e;--line:#d1d9e0;--card:#f6f8fa;--passed:#3b7dd8;\
--failed:#cf222e;--late:#d4790b;--cancelled:#7d8590;--queue:#b9a5e0;--own:#c5ccd3;--work:#9dbfec;--due:#a1260d;--in:#fff}
@media(prefers-color-scheme:dark){:root{--page:#0d1117;--ink:#e6edf3;--soft:#9198a1;--line:#30363d;--card:#161b22;\
--passed:#3a75c4;--failed:#da3633;--late:#b5690a;--cancelled:#656c76;--queue:#6e5a9e;--own:#484f58;--work:#2c4a73;--due:#ff9b7a;--in:#fff}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1120px;padding:24px 20px 60px;background:var(--page);color:var(--ink);\
font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',sans-serif}
h1{font-size:24px;margin:0 0 4px}h2{font-size:18px;margin:36px 0 8px}
p{margin:6px 0}.soft,.aside{color:var(--soft)}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(210px,1fr));gap:10px;margin:16px 0}
.facts div{background:var(--card);border:1px solid var(--line);border-radius:6px;padding:8px 12px;overflow-wrap:anywhere}
.facts b{display:block;font-size:12px;font-weight:500;color:var(--soft)}
.trouble{border-left:4px solid var(--failed);padding:4px 12px;background:var(--card)}
.wide{overflow-x:auto}svg{display:block;width:100%;min-width:760px;font-size:12px;fill:var(--ink)}
.name{text-anchor:end}.tick{text-anchor:middle;font-size:11px;fill:var(--soft)}svg .aside{fill:var(--soft);stroke:var(--page);stroke-width:4px;paint-order:stroke}.before{text-anchor:end}
.number{font-size:11.5px}.number.over{fill:var(--due);font-weight:600}.in{fill:var(--in);font-size:11.5px}
.grid,.lane{stroke:var(--line)}.room{stroke:var(--soft);stroke-dasharray:1 3}.due{stroke:var(--due);stroke-width:2}
.history .due{stroke-width:1;stroke-dasharray:4 3}.beyond{fill:none;stroke:var(--due);stroke-width:1.5}
.path{fill:none;stroke:var(--passed);stroke-opacity:.45}.wait{fill:var(--own)}
rect{stroke:var(--page);stroke-width:.7}.passed{fill:var(--passed)}.failed{fill:var(--failed)}.late{fill:var(--late)}.cancelled,.not-run{fill:var(--cancelled)}.no-verdict{fill:var(--queue)}
.queue{fill:var(--queue)}.own{fill:var(--own)}.work{fill:var(--work)}.queue+.in,.own+.in,.work+.in{fill:var(--ink)}
.legend{font-size:13px;color:var(--soft)}.legend span{margin-right:16px;white-space:nowrap}
.legend i{display:inline-block;width:12px;height:12px;margin-right:5px;border-radius:2px;vertical-align:-1px}
i.passed{background:var(--passed)}i.failed{background:var(--failed)}i.late{background:var(--late)}i.cancelled{background:var(--cancelled)}
i.queue{background:var(--queue)}i.own{background:var(--own)}i.work{background:var(--work)}
i.wait{background:var(--own);height:6px;vertical-align:2px}i.due{background:var(--due);width:3px}
table{border-collapse:collapse;width:100%;font-size:13.5px}th,td{padding:4px 10px;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
th{font-weight:500;color:var(--soft);white-space:nowrap}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
code{white-space:nowrap;font:12.5px ui-monospace,Menlo,Consolas,monospace}
.word{font-weight:600;white-space:nowrap}.word.bad{color:var(--due)}summary{cursor:pointer;color:var(--soft)}
@media print{body{max-width:none}}
";

/// The page of receipts, newest first; at least one. `needs` are those of the newest one's suite, if they are known.
pub fn page(receipts: &[Receipt], needs: Option<&Needs>) -> String {
    let Some(newest) = receipts.first() else { return String::new() };
    let run = &newest.predicate;
    let mut out = String::from(BEGINNING);
    out += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
    // Nothing of a page made from what tasks are called may run or be fetched, whatever a browser makes of it.
    out += "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n";
    let headline = headline(newest);
    let _ = writeln!(out, "<title>{}</title>\n<style>{STYLE}</style>\n</head>\n<body>", escape(&headline));
    let _ = writeln!(out, "<h1>{}</h1>", escape(&headline));
    let _ = writeln!(
        out,
        "<p class=\"soft\">{} for {}, {}</p>",
        escape(run.run.as_str()),
        run.caller,
        utc(run.clocks.requested.wall_ms).replace('T', " ")
    );
    facts(&mut out, newest);
    if !run.trouble.is_empty() {
        let lines: Vec<String> = run.trouble.iter().map(|line| escape(line)).collect();
        let _ = writeln!(out, "<p class=\"trouble\">{}</p>", lines.join("<br>"));
    }
    out += "<h2>The run over time</h2>\n";
    if run.clocks.won.is_some() {
        let _ = writeln!(out, "<div class=\"wide\">\n{}</div>", timeline::draw(run, needs));
        out += &timeline::legend(run);
        if needs.is_none() {
            out += "<p class=\"soft\">When tasks were ready is not drawn: the suite of this run is not at hand.</p>\n";
        }
    } else {
        out += "<p>The locks were never won: nothing was run.</p>\n";
    }
    tasks(&mut out, run);
    past(&mut out, receipts);
    out + "</body>\n</html>\n"
}

fn headline(receipt: &Receipt) -> String {
    let run = &receipt.predicate;
    let count = |word| run.tasks.iter().filter(|task| task.verdict == word).count();
    let words = [Word::Passed, Word::Failed, Word::Late, Word::Cancelled, Word::NotRun];
    let counts: Vec<String> =
        words.into_iter().filter(|&word| count(word) > 0).map(|word| format!("{} {word}", count(word))).collect();
    let at = receipt.subject.commit.as_deref().map_or(String::new(), |id| format!(" at {}", short(id)));
    let result = run.result.to_string().to_uppercase().replace('-', " ");
    format!("{result}{}: {}{at}", partial(run), counts.join(", "))
}

fn partial(run: &Predicate) -> &'static str {
    if run.extent == Extent::Partial { super::PARTIAL } else { "" }
}

// `whole`, or which part: `partial: --only fmt,test`.
fn extent(run: &Predicate) -> String {
    if run.extent == Extent::Whole {
        return "whole".to_owned();
    }
    let only: Vec<&str> = run.selection.only.iter().map(|task| task.as_str()).collect();
    let only = if only.is_empty() { String::new() } else { format!(" --only {}", only.join(",")) };
    let profile = run.selection.profile.as_ref().map_or(String::new(), |name| format!(" --profile {}", name.as_str()));
    format!("partial:{profile}{only}")
}

fn facts(out: &mut String, receipt: &Receipt) {
    let (run, limits) = (&receipt.predicate, &receipt.predicate.limits);
    let of = |part, whole| format!("{} of {} ({}%)", human(part), human(whole), percent(part, whole));
    let tree = match (run.tree.clean, run.tree.changed) {
        (_, Answer::Yes) => format!("changed during the run: {}", run.tree.changed_files.join(", ")),
        (Answer::Yes, Answer::No) => "clean, unchanged during the run".to_owned(),
        (Answer::Yes, _) => "clean".to_owned(),
        (Answer::No, _) => format!("{} uncommitted files", run.tree.uncommitted.len()),
        (Answer::Unknown, _) => "never read".to_owned(),
    };
    let closest = run.tasks.iter().filter(|task| task.started_ms.is_some());
    let closest = closest.max_by_key(|task| percent(task.took_ms, task.deadline_ms));
    let closest =
        closest.map_or("-".to_owned(), |task| format!("{} {}", task.name, of(task.took_ms, task.deadline_ms)));
    let versions: Vec<String> = run.toolchain.iter().map(|(program, version)| format!("{program} {version}")).collect();
    let rows = [
        ("queue", of(run.queue_ms, limits.queue_ms)),
        ("run", of(run.run_ms, limits.deadline_ms)),
        ("closest to its deadline", closest),
        ("tree", tree),
        ("CPU slots", limits.slots.to_string()),
        ("suite", format!("{} {}, {}", run.suite.path, short(&run.suite.sha256), extent(run))),
        ("toolchain", if versions.is_empty() { "-".to_owned() } else { versions.join(", ") }),
    ];
    out.push_str("<div class=\"facts\">");
    for (name, text) in rows {
        let _ = write!(out, "<div><b>{name}</b>{}</div>", escape(&text));
    }
    out.push_str("</div>\n");
}

// A table. A heading that begins with `#` stands over numbers; what is in the cells is markup already.
fn table(out: &mut String, headings: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let class = |heading: &str| if heading.starts_with('#') { " class=\"n\"" } else { "" };
    out.push_str("<div class=\"wide\"><table>\n<tr>");
    for heading in headings {
        let _ = write!(out, "<th{}>{}</th>", class(heading), heading.trim_start_matches('#'));
    }
    out.push_str("</tr>\n");
    for row in rows {
        out.push_str("<tr>");
        for (heading, cell) in headings.iter().zip(row) {
            let _ = write!(out, "<td{}>{cell}</td>", class(heading));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
}

fn tasks(out: &mut String, run: &Predicate) {
    out.push_str("<h2>Tasks</h2>\n");
    let row = |task: &Task| {
        let if_ran = |text: String| if task.started_ms.is_some() { text } else { "-".to_owned() };
        vec![
            escape(task.name.as_str()),
            word(task.verdict),
            if_ran(human(task.took_ms)),
            human(task.deadline_ms),
            if_ran(format!("{}%", percent(task.took_ms, task.deadline_ms))),
            if_ran(human(task.cpu_ms)),
            if_ran(format!("{} MiB", task.peak_kib / 1024)),
            task.slots.iter().map(u64::to_string).collect::<Vec<_>>().join(" "),
            escape(&why(task)),
        ]
    };
    let headings = ["task", "verdict", "#took", "#deadline", "#used", "#CPU time", "#peak memory", "CPUs", "why"];
    table(out, &headings, run.tasks.iter().map(row));
}

fn why(task: &Task) -> String {
    let mut parts = if task.verdict == Word::Passed { Vec::new() } else { vec![task.why.clone()] };
    if !task.signals.is_empty() {
        parts.push(format!("sent {}", task.signals.join(", ")));
    }
    // The reason of a failure may have named them.
    let named = task.why == Verdict::Failed(Cause::Leftovers(task.leftovers.clone())).to_string();
    if !task.leftovers.is_empty() && !named {
        parts.push(format!("left {}", task.leftovers.join(", ")));
    }
    parts.join("; ")
}

fn word(word: Word) -> String {
    let class = if word == Word::Passed { "word" } else { "word bad" };
    format!("<span class=\"{class}\">{word}</span>")
}

fn past(out: &mut String, receipts: &[Receipt]) {
    let runs: Vec<&Predicate> = receipts.iter().rev().map(|receipt| &receipt.predicate).collect();
    if runs.len() == 1 {
        out.push_str("<p class=\"soft\">From the second receipt on, each task's share of its deadline over the runs stands here.</p>\n");
        return;
    }
    let _ = writeln!(out, "<h2>Shares of deadlines over {} runs</h2>", runs.len());
    out.push_str(
        "<p class=\"soft\">Oldest left, newest right. The dashed line is the deadline; a line joins what passed. \
         Runs of a part of the suite are not in the row of runs.</p>\n",
    );
    let _ = writeln!(out, "<div class=\"wide\">\n{}</div>", history::draw(&runs));
    let _ = writeln!(out, "<details{}><summary>All runs</summary>", if runs.len() <= 10 { " open" } else { "" });
    let row = |receipt: &Receipt| {
        let run = &receipt.predicate;
        vec![
            format!("<code>{}</code>", escape(run.run.as_str())),
            utc(run.clocks.requested.wall_ms).replace('T', " "),
            run.caller.to_string(),
            word(run.result) + partial(run),
            format!("<code>{}</code>", escape(receipt.subject.commit.as_deref().map_or("-", short))),
            human(run.queue_ms),
            human(run.run_ms),
            run.tasks.len().to_string(),
        ]
    };
    let headings = ["run", "#when", "for", "result", "commit", "#queue", "#run", "#tasks"];
    table(out, &headings, receipts.iter().map(row));
    out.push_str("</details>\n");
}
