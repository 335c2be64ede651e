//! The service through the whole program: `xtask verify` on repositories whose tasks ask the server.

use crate::world::World;

const SUITE: &str = r#"
schema = 1
[run]
deadline = "2m"
queue = "1m"
[service.postgres]
start = "60s"
[task.a]
command = ["sh", "-c", "psql -XAtc 'select current_database(), version()' && psql -XAtc 'show data_directory' >data-a"]
services = ["postgres"]
deadline = "1m"
[task.b]
command = ["sh", "-c", "psql -XAtc 'create table t (x int)' && psql -XAtc 'show data_directory' >data-b"]
services = ["postgres"]
deadline = "1m"
"#;

#[test]
fn tasks_of_a_run_find_databases_and_nothing_is_left() {
    let world = World::new(SUITE);
    world.write(".gitignore", "/target\n/receipts/\n/data-*\n");
    world.commit("data files are ignored");
    world.run(&["verify"]).expect(0);
    let data = std::fs::read_to_string(world.repo.join("data-a")).unwrap();
    assert_eq!(data, std::fs::read_to_string(world.repo.join("data-b")).unwrap());
    assert!(!std::path::Path::new(data.trim()).exists(), "{data}");
    let receipt = std::fs::read_to_string(&world.receipts()[0]).unwrap();
    assert!(receipt.contains("PostgreSQL 1"), "{receipt}");
}
