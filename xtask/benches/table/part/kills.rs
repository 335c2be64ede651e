//! What is left where a process of a run is killed, and how soon the machine is free.

use crate::field::{Dice, Field, Victim};
use crate::progress::Progress;
use crate::table::{Aim, Line, Row, Spread, Unit};
use crate::turns::ms;

const ALL: usize = 1000;

pub fn measure(progress: &Progress, count: usize) -> Vec<Row> {
    let field = Field::new();
    let rounds = (0..count).map(|seed| {
        progress.round("kill", seed, count);
        let (victim, moment) = Dice::new(seed as u64).kill();
        // Stops with the seed's own message at the first survivor, stuck port or folder.
        (victim, field.round(victim, moment))
    });
    let rounds: Vec<_> = rounds.collect();
    let of = |victim: Victim| rounds.iter().filter(move |(whom, _)| *whom == victim).map(|(_, took)| *took);
    let victims = [(Victim::Runner, "runner"), (Victim::Keeper, "keeper"), (Victim::KeepersGroup, "keeper's group")];
    let killed = victims.into_iter().filter(|(victim, _)| of(*victim).next().is_some());
    let line = |(victim, name): (Victim, &str)| {
        let gone = Line::new(&format!("{name}, {} times", of(victim).count()), ms(of(victim).map(|(gone, _)| gone)));
        let free = ms(of(victim).map(|(_, free)| free));
        gone.note(&format!("ports free after {:.1} ms, {:.1} at most", free.median, free.most))
    };
    let all = ms(rounds.iter().map(|(_, (gone, _))| *gone));
    let note = match count < ALL {
        true => format!("{ALL} by hand: cargo bench --bench table -- kills {ALL}"),
        false => String::new(),
    };
    let what = format!("survivors, stuck ports and folders after {count} SIGKILLs at random moments of a run");
    vec![
        Row::new(&what, Unit::Count).aim(Aim::Every(0.0)).ours(Spread::one(0.0)).note(&note),
        Row::new("all processes gone after such a kill", Unit::Ms)
            .aim(Aim::Every(50.0))
            .ours(all)
            .beside(killed.map(line)),
    ]
}
