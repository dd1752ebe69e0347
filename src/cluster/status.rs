//! `portcullis cluster status`: the nodes in a table, or as JSON.

use serde_json::{Value, json};

use crate::base::durations::Durations;
use crate::cluster::survey::{Member, Survey};

/// Columns of the table.
const HEAD: [&str; 11] =
    ["node", "role", "vote", "term", "index", "lag", "flush p50/p99", "ping p50/p99", "append p50/p99", "version", "for clients"];

/// What is wrong: no leader, members that do not answer or belong to another cluster, and refused connections.
pub fn problems(survey: &Survey) -> Vec<String> {
    let mut problems: Vec<String> =
        survey.silent.iter().map(|(id, reason)| format!("node {id} does not answer: {reason}")).collect();
    let cluster = cluster(survey);
    for (id, asked) in &survey.answers {
        match (asked.status.disk.as_str(), asked.status.disk_ms) {
            ("hangs", ms) => problems.push(format!("the disk of node {id} has not answered for {ms} ms")),
            ("refuses", _) => problems.push(format!("the disk of node {id} takes nothing: it is full, or fails")),
            _ => {}
        }
        let theirs = &asked.status.cluster;
        if !theirs.is_empty() && theirs != cluster {
            problems.push(format!("node {id} belongs to cluster {theirs}, and the leader to cluster {cluster}"));
        }
        problems.extend(asked.status.refused.iter().map(|refused| format!("node {id} has refused {refused}")));
    }
    if survey.leader().is_none() {
        problems.insert(0, "no node leads".to_owned());
    }
    problems
}

/// The id of the cluster: the leader's, or that of any node. Empty if none has one.
fn cluster(survey: &Survey) -> &str {
    let mut known = survey.leader().into_iter().chain(survey.answers.values()).map(|asked| asked.status.cluster.as_str());
    known.find(|cluster| !cluster.is_empty()).unwrap_or_default()
}

/// What is shown of a node.
struct Row<'a> {
    member: &'a Member,
    /// leader, follower, no-quorum, or down.
    role: &'a str,
    term: Option<u64>,
    index: Option<u64>,
    /// Number of entries of the leader's log that it lacks.
    lag: Option<u64>,
    flushes: Durations,
    version: &'a str,
}

fn rows(survey: &Survey) -> Vec<Row<'_>> {
    let last = survey.leader().map(|leader| leader.status.applied);
    let mut rows = Vec::new();
    for member in &survey.members {
        let status = survey.answers.get(&member.id).map(|asked| &asked.status);
        let index = member.index.or(status.map(|status| status.applied));
        rows.push(Row {
            member,
            role: status.map_or("down", |status| &status.role),
            term: status.map(|status| status.term),
            index,
            lag: index.zip(last).map(|(index, last)| last.saturating_sub(index)),
            flushes: status.map(|status| status.flushes).unwrap_or_default(),
            version: status.map_or("-", |status| &status.version),
        });
    }
    rows
}

/// A table for people.
pub fn table(survey: &Survey) -> String {
    let mut lines = vec![HEAD.map(str::to_owned).to_vec()];
    lines[0].push("among nodes".to_owned());
    for Row { member, role, term, index, lag, flushes, version } in rows(survey) {
        let Member { host, port, tls_port, .. } = member;
        let number = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
        let tls = if *tls_port > 0 { format!(" (TLS {tls_port})") } else { String::new() };
        lines.push(vec![
            member.id.to_string(),
            role.to_owned(),
            if member.votes { "yes" } else { "no" }.to_owned(),
            number(term),
            number(index),
            number(lag),
            shown(flushes),
            shown(member.pings),
            shown(member.appends),
            version.to_owned(),
            format!("{host}:{port}{tls}"),
            member.address.clone(),
        ]);
    }
    match cluster(survey) {
        "" => aligned(&lines),
        id => format!("{}cluster {id}\n", aligned(&lines)),
    }
}

/// Percentiles in milliseconds.
fn shown(durations: Durations) -> String {
    let ms = |us: u64| us as f64 / 1000.0;
    match durations.count {
        0 => "-".to_owned(),
        _ => format!("{:.2}/{:.2} ms", ms(durations.p50_us), ms(durations.p99_us)),
    }
}

fn aligned(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let cells: Vec<String> = line.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// The same as JSON.
pub fn json(survey: &Survey) -> Value {
    let durations = |of: Durations| json!({ "count": of.count, "p50_us": of.p50_us, "p99_us": of.p99_us });
    let nodes: Vec<Value> = rows(survey)
        .into_iter()
        .map(|Row { member, role, term, index, lag, flushes, version }| {
            json!({
                "node": member.id,
                "role": role,
                "vote": member.votes,
                "term": term,
                "index": index,
                "lag": lag,
                "flush": durations(flushes),
                "ping": durations(member.pings),
                "append": durations(member.appends),
                "version": version,
                "host": member.host,
                "port": member.port,
                "tls_port": member.tls_port,
                "address": member.address,
                "error": survey.silent.get(&member.id),
            })
        })
        .collect();
    let leader = survey.leader().map(|leader| leader.status.node);
    json!({ "cluster": cluster(survey), "leader": leader, "nodes": nodes, "problems": problems(survey) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_longest_cell() {
        let line = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        assert_eq!(aligned(&[line(["a", "bc", "d"]), line(["long", "x", ""])]), "a     bc  d\nlong  x\n");
    }

    #[test]
    fn durations_are_in_milliseconds() {
        assert_eq!(shown(Durations::default()), "-");
        assert_eq!(shown(Durations { count: 1, p50_us: 255, p99_us: 2047, max_us: 2047 }), "0.26/2.05 ms");
    }
}
