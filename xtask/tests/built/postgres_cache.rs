//! The cached cluster: checked on every use, made anew when anything is wrong with it, and safe with many at once.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use xtask::suite::Fill;

use crate::postgres::{Server, ask, service};
use crate::world::{Folder, may_mount, skipped};

fn start(cache: &Path) -> Server {
    Server::start_in(Folder::new(), service(Fill::Empty), |command| {
        command.env("XDG_CACHE_HOME", cache);
    })
}

fn clusters(cache: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(cache.join("xtask")).into_iter().flatten().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|e| e == "cluster")).collect()
}

/// Whether initdb had to run. The server works either way.
#[track_caller]
fn builds(cache: &Path) -> bool {
    let mut server = start(cache);
    let env = server.database("a");
    assert_eq!(ask(&env, "select count(*) from pg_database where datname like 'template%'"), ["2"]);
    let log = server.log();
    server.stop();
    log.contains("the cluster is made")
}

#[test]
fn a_damaged_cache_is_made_anew_whatever_is_damaged() {
    let cache = Folder::new();
    assert!(builds(cache.path()), "nothing is there at first");
    assert!(!builds(cache.path()), "what is whole is used");
    let path = clusters(cache.path()).remove(0);
    let whole = fs::read(&path).unwrap();
    let head = 65 + whole[65..].iter().position(|&b| b == b'\n').unwrap();
    let find = |text: &[u8]| whole.windows(text.len()).rposition(|w| w == text).unwrap();
    // In the sum, the list of files, the first file, the configuration, the middle (tables), and the last byte (log).
    let places = [3, 65 + 20, head - 3, head + 5, find(b"max_connections = "), whole.len() / 2, whole.len() - 1];
    for at in places {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        fs::write(&path, damaged).unwrap();
        assert!(builds(cache.path()), "byte {at} of {} is damaged", whole.len());
    }
    assert!(!builds(cache.path()), "it is repaired");
    for (what, bytes) in [
        ("empty", Vec::new()),
        ("cut off", whole[..whole.len() - 4096].to_vec()),
        ("longer", [whole.clone(), b"x".to_vec()].concat()),
        ("without an end of line", vec![b'a'; 100]),
    ] {
        fs::write(&path, bytes).unwrap();
        assert!(builds(cache.path()), "{what}");
    }
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    // A folder in the way cannot be replaced: the server does without the cache, and says so.
    for _ in 0..2 {
        assert!(builds(cache.path()));
    }
    let mut server = start(cache.path());
    server.database("a");
    let log = server.log();
    assert!(log.contains("cannot be kept in the cache") && log.contains("cannot write"), "{log}");
    server.stop();
}

#[test]
fn a_full_disk_below_the_cache_is_no_reason_to_have_no_server() {
    if !crate::postgres_users::is_root() || !may_mount() {
        return skipped("a_full_disk_below_the_cache_is_no_reason_to_have_no_server", "mounts take a root that may");
    }
    let cache = Folder::new();
    // The mount is the host's alone.
    let mut server = Server::start_under(
        &["unshare", "--mount", "sh", "-c", "mount -t tmpfs -o size=1m none \"$XDG_CACHE_HOME\" && exec \"$@\"", "sh"],
        service(Fill::Empty),
        |command| {
            command.env("XDG_CACHE_HOME", cache.path());
        },
    );
    server.database("a");
    assert!(server.log().contains("No space left"), "{}", server.log());
    server.stop();
}

#[test]
fn a_cluster_of_other_programs_is_not_used() {
    let cache = Folder::new();
    assert!(builds(cache.path()));
    let path = clusters(cache.path()).remove(0);
    // As after an update: what lies under the name of these programs was made by others. Whole it is.
    let text = fs::read(&path).unwrap();
    let (rest, key) =
        (text[65..].to_vec(), path.file_stem().unwrap().to_str().unwrap().strip_prefix("postgres-").unwrap());
    let at = rest.windows(key.len()).position(|window| window == key.as_bytes()).unwrap();
    let mut other = rest.clone();
    other[at] = if other[at] == b'0' { b'1' } else { b'0' };
    let sum = xtask::digest::of_bytes(&other);
    fs::write(&path, [sum.as_bytes(), b"\n", &other].concat()).unwrap();
    assert!(builds(cache.path()));
}

#[test]
fn a_cluster_that_leaves_its_folder_is_refused() {
    let cache = Folder::new();
    assert!(builds(cache.path()));
    let path = clusters(cache.path()).remove(0);
    let text = fs::read(&path).unwrap();
    let rest = String::from_utf8_lossy(&text[65..2000]).into_owned();
    assert!(rest.contains("\"PG_VERSION\"") || rest.contains("\"base\""), "{rest}");
    let at = text.windows(6).position(|window| window == b"\"base\"").unwrap();
    let other = [&text[65..at], b"\"../x\"", &text[at + 6..]].concat();
    let sum = xtask::digest::of_bytes(&other);
    fs::write(&path, [sum.as_bytes(), b"\n", &other].concat()).unwrap();
    let mut server = start(cache.path());
    server.database("a");
    assert!(server.log().contains("the cluster is made anew"), "{}", server.log());
    assert!(!server.scratch.join("postgres/x").exists(), "something was written beside the folder");
    server.stop();
}

#[test]
fn many_at_once_make_it_once() {
    let cache = Folder::new();
    let mut servers: Vec<Server> = (0..4).map(|_| start(cache.path())).collect();
    let mut made = 0;
    for server in &mut servers {
        let env = server.database("a");
        assert!(ask(&env, "select version()")[0].starts_with("PostgreSQL "));
        made += usize::from(server.log().contains("the cluster is made"));
    }
    servers.iter_mut().for_each(Server::stop);
    assert_eq!(made, 1);
    assert_eq!(clusters(cache.path()).len(), 1);
}

#[test]
fn a_cluster_that_somebody_else_put_there_is_not_used() {
    if !crate::postgres_users::is_root() {
        return skipped("a_cluster_that_somebody_else_put_there_is_not_used", "it takes root to be somebody else");
    }
    let cache = Folder::new();
    assert!(builds(cache.path()));
    std::os::unix::fs::chown(clusters(cache.path()).remove(0), Some(54_321), None).unwrap();
    assert!(builds(cache.path()), "it is another user's");
    assert!(!builds(cache.path()));
}

#[test]
fn old_clusters_and_halves_of_killed_builders_are_removed() {
    let cache = Folder::new();
    let folder = cache.path().join("xtask");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).unwrap();
    for number in 0..6 {
        let old = fs::File::create(folder.join(format!("postgres-{number}.cluster"))).unwrap();
        old.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1000 + number)).unwrap();
    }
    for other in ["postgres-0.partial-77", "other.partial-77", "other"] {
        fs::write(folder.join(other), "").unwrap();
    }
    assert!(builds(cache.path()));
    let entries = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut left: Vec<String> = entries.filter(|name| name.len() < 30).collect();
    left.sort();
    let clusters = ["postgres-3.cluster", "postgres-4.cluster", "postgres-5.cluster"];
    assert_eq!(left, [&["other", "other.partial-77"], &clusters[..], &["postgres.lock"]].concat(), "and the new one");
}

#[test]
fn a_cache_of_somebody_else_is_not_used() {
    if !crate::postgres_users::is_root() {
        return skipped("a_cache_of_somebody_else_is_not_used", "it takes root to be somebody else");
    }
    passed_over(|folder| std::os::unix::fs::chown(folder, Some(54_321), None).unwrap());
}

#[test]
fn a_cache_that_others_can_write_is_not_used() {
    passed_over(|folder| fs::set_permissions(folder, PermissionsExt::from_mode(0o777)).unwrap());
}

#[track_caller]
fn passed_over(spoil: impl Fn(&Path)) {
    let cache = Folder::new();
    let open = cache.path().join("xtask");
    fs::create_dir(&open).unwrap();
    spoil(&open);
    let temp = Folder::new();
    let mut server = Server::start_in(Folder::new(), service(Fill::Empty), |command| {
        command.env("XDG_CACHE_HOME", cache.path()).env("TMPDIR", temp.path());
    });
    server.database("a");
    server.stop();
    assert_eq!(fs::read_dir(&open).unwrap().count(), 0);
    assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1, "its own folder among the temporary files");
}
