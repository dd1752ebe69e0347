//! TLS among the nodes, together with the shared secret.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::nodes::Cluster;

/// Writes an authority and a certificate of a node into a folder, as `NAME.ca`, `NAME.crt` and `NAME.key`.
fn issue(folder: &Path, name: &str) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let node = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    let write = |kind: &str, text: String| std::fs::write(folder.join(format!("{name}.{kind}")), text).unwrap();
    write("ca", issuer.pem());
    write("crt", node.pem());
    write("key", key.serialize_pem());
}

fn arguments(folder: &Path, name: &str) -> Vec<String> {
    let path = |kind: &str| folder.join(format!("{name}.{kind}")).to_string_lossy().into_owned();
    let pairs = [
        ("--tls-cluster", "yes".to_owned()),
        ("--tls-cert-file", path("crt")),
        ("--tls-key-file", path("key")),
        ("--tls-ca-cert-file", path("ca")),
        ("--cluster-secret", "secret".to_owned()),
    ];
    pairs.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect()
}

#[test]
fn nodes_encrypt_and_refuse_others() {
    let mut cluster = Cluster::prepare();
    let folder = cluster.dir(0);
    issue(&folder, "ours");
    issue(&folder, "foreign");
    cluster.arguments = vec![arguments(&folder, "ours"); 3];
    (0..3).for_each(|node| cluster.start_node(node));
    assert_eq!(cluster.ask_leader(&["SET", "a", "1"]), "+OK");
    (0..3).for_each(|node| cluster.until_votes(node));
    // The third node comes back without TLS.
    cluster.kill(2);
    cluster.arguments[2] = vec!["--cluster-secret".to_owned(), "secret".to_owned()];
    cluster.start_node(2);
    let leads = cluster.leader();
    assert!(leads < 2, "it is not among those that speak TLS");
    cluster.wait("the refusal", |cluster| {
        let (theirs, ours) = (cluster.log(2), cluster.log(leads));
        let told = theirs.contains("the beginning of TLS, which this node does not use among nodes (tls-cluster)");
        (told && ours.contains("no handshake of TLS")).then_some(())
    });
    // Then its certificate is another authority's.
    cluster.kill(2);
    cluster.arguments[2] = arguments(&folder, "foreign");
    cluster.start_node(2);
    cluster.wait("the refusal", |cluster| {
        let (theirs, ours) = (cluster.log(2), cluster.log(leads));
        (theirs.contains("UnknownIssuer") && ours.contains("UnknownIssuer")).then_some(())
    });
    // Then its secret is wrong, and then nothing is.
    cluster.kill(2);
    cluster.arguments[2] = arguments(&folder, "ours").into_iter().map(|word| word.replace("secret", "wrong")).collect();
    cluster.arguments[2][8] = "--cluster-secret".to_owned();
    cluster.start_node(2);
    cluster.wait("the refusal", |cluster| cluster.log(2).contains("wrong cluster-secret").then_some(()));
    cluster.kill(2);
    cluster.arguments[2] = arguments(&folder, "ours");
    cluster.start_node(2);
    cluster.until_follows(2);
    cluster.kill(1 - leads);
    assert_eq!(cluster.ask_leader(&["GET", "a"]), "1", "two of three are a majority");
}

#[test]
fn a_node_without_an_authority_does_not_start() {
    let mut cluster = Cluster::prepare();
    let folder = cluster.dir(0);
    issue(&folder, "ours");
    let words = arguments(&folder, "ours");
    let words: Vec<&str> =
        words.iter().map(String::as_str).filter(|word| !word.contains("ca-cert") && !word.ends_with(".ca")).collect();
    let log = cluster.refused(0, &folder, &words);
    assert!(log.contains("tls-cluster: tls-ca-cert-file or tls-ca-cert-dir must name the authority"), "{log}");
}
