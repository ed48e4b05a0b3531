use std::fs;

use walrelay_testkit::{Authority, Redis, RedisCluster, RedisGroup};

use super::checked;
use crate::rig::Rig;

#[test]
fn check_reports_faults_of_a_redis_sink() {
    if !Redis::is_wanted() {
        return;
    }
    let rig = Rig::without_broker(18).outbox();
    let config = rig.config();
    let with =
        |host: &str, set: &str| format!("sink.kind=redis sink.redis.hosts=[\"{host}\"] {set}");
    let item = "configuration/redis-settings";
    let login = "sink.redis.username=weak sink.redis.password=secret-word";
    let offline = with("h", login);
    checked(&config, &["--offline"], &offline).warns(item, &["without TLS"]);
    let no_file = with("h", "sink.redis.tls=true sink.redis.ca_file=/nonexistent");
    let words = ["[redis-settings]", "/nonexistent"];
    checked(&config, &["--offline"], &no_file).fails(item, &words);

    let authority = Authority::new("ca");
    let expired = authority.expired_client("client");
    for (name, text) in [
        ("own-ca.pem", authority.pem()),
        ("own.pem", expired.certificate),
        ("own.key", expired.key),
    ] {
        fs::write(rig.path(name), text).expect("a file");
    }
    let folder = rig.folder().display();
    let own = format!(
        "sink.redis.tls=true sink.redis.ca_file={folder}/own-ca.pem \
         sink.redis.certificate_file={folder}/own.pem sink.redis.key_file={folder}/own.key"
    );
    let words = ["own.pem", "has expired: it ended on", "have a new one"];
    checked(&config, &["--offline"], &with("h", &own)).warns(item, &words);

    let server = Redis::in_turn();
    let host = format!("127.0.0.1:{}", server.port());
    let item = "redis/redis-login";
    // No server listens at this port.
    let nobody = with("127.0.0.1:1", "");
    checked(&config, &[], &nobody).fails(item, &["[redis-unreachable]", "127.0.0.1:1"]);
    let ca = rig.path("ca.pem");
    fs::write(&ca, Authority::new("ca").pem()).expect("a file");
    let ca = format!(
        "sink.redis.tls=true sink.redis.ca_file={} sink.redis.connect_timeout=1s",
        ca.display()
    );
    // A port without TLS waits for the end of a line.
    let tls = checked(&config, &[], &with(&host, &ca));
    tls.fails(
        item,
        &[
            "[redis-unreachable]",
            "no answer for 1 s",
            "check hosts and tls",
        ],
    );
    let refused = checked(&config, &[], &with(&host, login));
    let found = refused.fails(item, &["[redis-access]", "WRONGPASS", "correct username"]);
    assert!(!found.to_string().contains("secret-word"), "{found:#}");
    refused.ends(77);

    let stream = format!("{}stream", rig.prefix);
    let dead = format!("{}dead", rig.prefix);
    let letters =
        format!("sink.redis.stream={stream} poison.oversize=dead-letter poison.topic={dead}");
    let set = with(&host, &letters);
    let about_server = "redis/redis-server";
    let memory = "redis/redis-memory";
    let durability = "redis/redis-durability";
    let streams = "redis/redis-streams";
    let rights = "redis/redis-rights";
    let letters = "redis/redis-dead-letters";
    let fine = checked(&config, &[], &set);
    fine.passes(item, &[&host]);
    fine.passes(about_server, &["Redis "]);
    fine.passes(memory, &["noeviction"]);
    fine.passes(durability, &["before it answers"]);
    fine.passes(streams, &[&stream]);
    fine.passes(rights, &["may write", &stream]);
    fine.passes(letters, &[&dead]);
    let mut client = server.client();
    assert_eq!(client.entries(&stream), [], "check writes nothing");

    client.done("CONFIG SET maxmemory-policy allkeys-lru");
    client.done("CONFIG SET appendfsync everysec");
    client.done(&format!("SET {stream} text"));
    client.done(&format!("SET {dead} text"));
    let wrong = checked(&config, &[], &set);
    wrong.fails(memory, &["[redis-eviction]", "allkeys-lru", "noeviction"]);
    wrong.warns(durability, &["everysec"]);
    wrong.fails(streams, &["[redis-wrong-type]", &stream, "no streams"]);
    wrong.fails(letters, &["[redis-wrong-type]", &dead]);
    wrong.ends(78);
    client.done("CONFIG SET maxmemory-policy noeviction");
    client.done("CONFIG SET appendonly no");
    checked(&config, &[], &set).warns(durability, &["appendonly is no"]);
    client.done("CONFIG SET appendonly yes");
    client.done("CONFIG SET appendfsync always");
    client.run(&format!("DEL {stream} {dead}"));

    // A user with all rights but that to add, and one that may add and not look at the server.
    client.done("ACL SETUSER weak on >secret-word ~* +@all -xadd");
    let weak = format!("{set} {login}");
    let denied = checked(&config, &[], &weak);
    denied.passes(streams, &[&stream]);
    denied.fails(rights, &["[redis-rights]", &stream, "XADD", "ACL SETUSER"]);
    denied.fails(letters, &["[redis-rights]", &dead]);
    client.done("ACL SETUSER weak +xadd -info -config");
    let blind = checked(&config, &[], &weak);
    for unseen in [about_server, memory, durability] {
        blind.warns(unseen, &["is not seen", "+info"]);
    }
    blind.passes(rights, &[&stream]);
    client.run("ACL DELUSER weak");
    client.done("REPLICAOF 127.0.0.1 1");
    checked(&config, &[], &set).fails(about_server, &["[redis-replica]"]);
    client.done("REPLICAOF NO ONE");
}

#[test]
fn check_reports_faults_of_a_redis_cluster() {
    if !Redis::is_wanted() {
        return;
    }
    let cluster = RedisCluster::start(false);
    let rig = Rig::without_broker(18).outbox();
    let config = rig.config();
    let with = |port: u16, set: &str| {
        format!("sink.kind=redis sink.redis.hosts=[\"127.0.0.1:{port}\"] {set}")
    };
    let port = cluster.node(0).port();
    let (item, about_server) = ("redis/redis-cluster", "redis/redis-server");
    let fine = checked(&config, &[], &with(port, "sink.redis.cluster=true"));
    fine.passes(item, &["3 nodes serve all slots"]);
    fine.passes(about_server, &["127.0.0.1:"]);
    let waits = "sink.redis.cluster=true sink.redis.wait_replicas=1";
    let waits = checked(&config, &[], &with(port, waits));
    waits.warns(item, &["has 0 replicas", "wait_replicas is 1"]);
    let not_said = checked(&config, &[], &with(port, ""));
    not_said.fails(about_server, &["[redis-cluster]", "cluster = true"]);
    not_said.ends(78);
    let slot = cluster.slot("any");
    for number in 0..3 {
        let delete = format!("CLUSTER DELSLOTS {slot}");
        cluster.client(number).done(&delete);
    }
    let unserved = checked(&config, &[], &with(port, "sink.redis.cluster=true"));
    unserved.warns(item, &["serves 1 slots"]);
    let alone = Redis::start();
    let alone = checked(&config, &[], &with(alone.port(), "sink.redis.cluster=true"));
    alone.fails(item, &["[redis-cluster]", "no node of a cluster"]);
    alone.ends(78);
}

#[test]
fn check_reports_faults_of_redis_sentinels() {
    if !Redis::is_wanted() {
        return;
    }
    let group = RedisGroup::start();
    let rig = Rig::without_broker(18).outbox();
    let config = rig.config();
    let sentinel = format!("127.0.0.1:{}", group.sentinel_port());
    let with = |sentinels: &str, master: &str| {
        format!("sink.kind=redis sink.redis.sentinels=[{sentinels}] sink.redis.master={master}")
    };
    let item = "redis/redis-sentinel";
    let one = format!("\"{sentinel}\"");
    let master = format!("127.0.0.1:{}", group.master().port());
    let fine = checked(&config, &[], &with(&one, "mymaster"));
    fine.passes(item, &["1 of 1 sentinels", &master, "mymaster"]);
    fine.passes("redis/redis-login", &[&master]);
    let down = format!("\"127.0.0.1:1\",{one}");
    let down = checked(&config, &[], &with(&down, "mymaster"));
    down.warns(item, &["1 of 2 sentinels", "127.0.0.1:1"]);
    // A server that is none is no reason not to ask the next one.
    let none = format!("\"{master}\",{one}");
    let none = checked(&config, &[], &with(&none, "mymaster"));
    none.warns(item, &["1 of 2 sentinels", "no sentinel"]);
    none.passes("redis/redis-login", &[&master]);
    let unknown = checked(&config, &[], &with(&one, "other"));
    unknown.fails(
        item,
        &["[redis-sentinel]", &sentinel, "no master \"other\""],
    );
    unknown.ends(78);
}
