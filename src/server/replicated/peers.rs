//! The directive `peers`.

use std::collections::BTreeMap;

use crate::quorum::types::NodeId;

/// Reads `1=host:port,2=host:port,…`.
///
/// # Errors
/// In words.
pub fn parse(text: &str) -> Result<BTreeMap<NodeId, String>, String> {
    let mut peers = BTreeMap::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let wrong = || format!("peers: '{part}' is not NUMBER=HOST:PORT");
        let (number, addr) = part.split_once('=').ok_or_else(wrong)?;
        let number: NodeId = number.trim().parse().ok().filter(|number| *number > 0).ok_or_else(wrong)?;
        let (host, port) = addr.trim().rsplit_once(':').ok_or_else(wrong)?;
        fail_if!(host.is_empty() || port.parse::<u16>().ok().is_none_or(|port| port == 0), wrong());
        fail_if!(peers.insert(number, addr.trim().to_owned()).is_some(), format!("peers: node {number} is there twice"));
    }
    Ok(peers)
}

/// The host of an address, without the brackets of an IPv6 address.
pub fn host_of(addr: &str) -> &str {
    let host = addr.rsplit_once(':').map_or(addr, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_numbers_and_addresses() {
        let peers = parse("1=a:7001, 3=[::1]:7003,2=10.0.0.2:7002,").unwrap();
        assert_eq!(
            peers.into_iter().map(|(id, addr)| format!("{id} {addr}")).collect::<Vec<_>>(),
            ["1 a:7001", "2 10.0.0.2:7002", "3 [::1]:7003"]
        );
        assert_eq!(host_of("[::1]:7003"), "::1");
        for wrong in ["a:1", "0=a:1", "x=a:1", "1=a", "1=:1", "1=a:0", "1=a:x", "1=a:99999"] {
            assert_eq!(parse(wrong), Err(format!("peers: '{wrong}' is not NUMBER=HOST:PORT")));
        }
        assert_eq!(parse("1=a:1,1=b:2"), Err("peers: node 1 is there twice".to_owned()));
    }
}
