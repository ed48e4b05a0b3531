//! `walrelay move verify`: whether the switch is complete, and the old server was written to after its drain.

use serde_json::json;
use walrelay_failure::{Exit, Failure};
use walrelay_postgres_source::has_events;
use walrelay_postgres_source::moves::{MoveState, missing_rows};
use walrelay_relay::TableName;
use walrelay_sink::PublishedLsn;

use super::place::{INSUFFICIENT_PRIVILEGE, Place, PlaceState, failure};
use super::switch::missing_text;
use crate::cli::VerifyMoveArgs;
use crate::commands::assembly::{block_on, wanted};
use crate::commands::print_as;

/// One fact, and whether it is as it must be.
struct Finding {
    is_right: bool,
    what: String,
}

fn finding(is_right: bool, right: &str, wrong: &str) -> Finding {
    let what = if is_right { right } else { wrong };
    Finding {
        is_right,
        what: what.to_owned(),
    }
}

/// Runs `walrelay move verify`.
pub(super) fn verify(
    args: &VerifyMoveArgs,
    place: &Place,
    former: Option<&Place>,
) -> Result<Exit, Failure> {
    let findings = block_on(Box::pin(async {
        let look = place.look_once().await?;
        let mut findings = new_findings(&look);
        if let Some(former) = former {
            let old = former.look_once().await?;
            findings.push(positions(&look, &old));
            findings.extend(old_findings(former, &old).await?);
            findings.extend(rows(place, former).await?);
        }
        Ok::<_, Failure>(findings)
    }))??;
    let is_right = findings.iter().all(|finding| finding.is_right);
    let lines = findings.iter().map(|Finding { is_right, what }| {
        format!("{}  {what}\n", if *is_right { "ok   " } else { "WRONG" })
    });
    let end = if is_right {
        "Compare rows and records of both sides: walrelay verify-topic with each configuration.\n"
    } else {
        ""
    };
    let text: String = lines.chain([end.to_owned()]).collect();
    let findings: Vec<_> = findings
        .iter()
        .map(|finding| json!({ "ok": finding.is_right, "what": finding.what }))
        .collect();
    print_as(
        args.output,
        &text,
        &json!({ "ok": is_right, "findings": findings }),
    )?;
    Ok(if is_right { Exit::Ok } else { Exit::Findings })
}

/// Finds whether the positions of the new server are published above those of the old one.
fn positions(new: &PlaceState, old: &PlaceState) -> Finding {
    let barrier = old.own().and_then(|record| record.barrier);
    let last = barrier.map(|barrier| PublishedLsn::new(old.epoch.number, barrier.get()));
    let first = new.slot.as_ref().and_then(|slot| slot.confirmed);
    let first = first.map(|first| PublishedLsn::new(new.epoch.number, first.get()));
    finding(
        first.zip(last).is_some_and(|(first, last)| first >= last),
        "its positions are published above those of the old server",
        "its positions are published below those of the old server: consumers that compare them drop events",
    )
}

/// Finds rows of the old server that the new one does not have. None is known to be missing if the new relay deletes
/// rows, or if a role may not read them.
async fn rows(place: &Place, former: &Place) -> Result<Vec<Finding>, Failure> {
    let not_compared = |table: &TableName, why: &str| {
        let what = format!("{table} is not compared with the old server's: {why}");
        finding(true, &what, "")
    };
    if place.server.config.prune.is_some() {
        let tables = place.tables().iter();
        return Ok(tables
            .map(|table| not_compared(table, "[prune] deletes rows here"))
            .collect());
    }
    let (mut here, mut there) = (place.connect().await?, former.connect().await?);
    let mut findings = Vec::new();
    let pruned = if former.server.config.prune.is_some() {
        "; rows that were pruned there are not compared"
    } else {
        ""
    };
    for table in place.tables() {
        let missing = match missing_rows(&mut here, &mut there, table).await {
            Err(error) if error.sqlstate() == Some(INSUFFICIENT_PRIVILEGE) => {
                findings.push(not_compared(table, "a role may not read it"));
                continue;
            }
            missing => missing.map_err(failure)?,
        };
        let wrong = missing.as_ref().map(|missing| {
            format!(
                "{}: their events are delivered, so insert none of them here, because the relay would send it again",
                missing_text(missing)
            )
        });
        findings.push(finding(
            missing.is_none(),
            &format!("{table} has every row that the old server's has{pruned}"),
            wrong.as_deref().unwrap_or_default(),
        ));
    }
    here.close().await;
    there.close().await;
    Ok(findings)
}

fn new_findings(look: &PlaceState) -> Vec<Finding> {
    let slot = look.slot.as_ref();
    let is_read = slot.is_some_and(|slot| slot.active_pid.is_some());
    vec![
        finding(
            look.state() == Some(MoveState::Switched),
            "this server was switched to",
            "this server was not switched to: run walrelay move switch",
        ),
        finding(
            look.check_fence("").is_err(),
            "its outbox accepts inserts",
            "its outbox is fenced",
        ),
        finding(
            slot.is_some_and(|slot| !slot.is_lost()),
            "its slot exists",
            "its slot is missing or lost",
        ),
        finding(
            is_read,
            "a relay reads its slot",
            "no relay reads its slot: start walrelay run",
        ),
    ]
}

async fn old_findings(former: &Place, look: &PlaceState) -> Result<Vec<Finding>, Failure> {
    let drained = look.state() == Some(MoveState::Drained);
    let mut findings = vec![
        finding(
            drained,
            "the old server is drained",
            "the old server is not drained",
        ),
        finding(
            look.unfenced.is_empty(),
            "the old server's outbox refuses inserts",
            "the old server's outbox accepts inserts: an event that is written there is sent out of order or lost",
        ),
    ];
    if let Some(confirmed) = look.slot.as_ref().and_then(|slot| slot.confirmed) {
        let server = &former.server;
        let wanted = wanted(&server.config);
        let waits = has_events(&server.info, &wanted, confirmed, look.flushed).await?;
        findings.push(finding(
            !waits,
            "no event waits in the old server's slot",
            "events wait in the old server's slot, which were written after the drain: let its relay send them",
        ));
    } else {
        findings.push(finding(
            false,
            "",
            "the old server's slot is missing: whether it was written to after the drain is not known",
        ));
    }
    Ok(findings)
}
