//! Fields of a server's `INFO`.

/// The value of a field in the reply to `INFO`.
pub fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// A server's name and version, such as `redis 7.0.15`, from its `INFO`.
pub fn name_and_version(info: &str) -> String {
    let version = |kind: &str| field(info, &format!("{kind}_version")).map(|number| format!("{kind} {number}"));
    ["portcullis", "kevy", "valkey", "redis"].into_iter().find_map(version).unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_has_the_name_and_version() {
        assert_eq!(name_and_version("redis_version:7.0.15\r\n"), "redis 7.0.15");
        assert_eq!(name_and_version("redis_version:7.4.2\r\nportcullis_version:0.1.0\r\n"), "portcullis 0.1.0");
        assert_eq!(name_and_version("redis_version:7.4.0\r\nkevy_version:3.17.3\r\n"), "kevy 3.17.3");
        assert_eq!(name_and_version("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1\r\n"), "valkey 8.0.1");
        assert_eq!(name_and_version(""), "unknown");
    }
}
