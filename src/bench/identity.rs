//! What a server says of itself in its `INFO`.

/// A field of an `INFO`.
pub fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// What a server is and of which version, by its `INFO`.
pub fn title(info: &str) -> String {
    let of = |kind: &str| field(info, &format!("{kind}_version")).map(|version| format!("{kind} {version}"));
    ["portcullis", "kevy", "valkey", "redis"].into_iter().find_map(of).unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_says_what_it_is() {
        assert_eq!(title("redis_version:7.0.15\r\n"), "redis 7.0.15");
        assert_eq!(title("redis_version:7.4.2\r\nportcullis_version:0.1.0\r\n"), "portcullis 0.1.0");
        assert_eq!(title("redis_version:7.4.0\r\nkevy_version:3.17.3\r\n"), "kevy 3.17.3");
        assert_eq!(title("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1\r\n"), "valkey 8.0.1");
        assert_eq!(title(""), "unknown");
    }
}
