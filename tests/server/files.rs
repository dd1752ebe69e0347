//! What a server writes into folders that others write to.

use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::common::talk::{call, until};
use crate::common::wire::Wire;

/// Ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn links_at_the_names_of_temporary_files_are_not_followed_and_keep_nothing_from_working() {
    let dir = std::env::temp_dir().join(format!("portcullis-server-files-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = |name: &str| dir.join(name);
    std::fs::write(path("victim"), "precious").unwrap();
    std::fs::write(path("users.acl"), "user default on nopass ~* &* +@all\n").unwrap();
    std::fs::write(path("portcullis.conf"), "port 0\naclfile users.acl\n").unwrap();
    symlink(path("nowhere"), path("portcullis.conf.writing.1")).unwrap();
    for target in ["ready.writing", "users.acl.writing", "portcullis.conf.writing"] {
        symlink(path("victim"), path(target)).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.arg("serve").arg(path("portcullis.conf")).arg("--dir").arg(&dir).arg("--ready-file").arg(path("ready"));
    let process = Process(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let mut address = String::new();
    crate::until("the ready file", || {
        address = std::fs::read_to_string(path("ready")).unwrap_or_default();
        !address.is_empty()
    });
    let mut wire = Wire::connect(address.trim()).unwrap();
    for number in 1..4 {
        symlink(path("victim"), path(&format!("temp-{}-{number}.rdb", process.0.id()))).unwrap();
    }
    symlink(path("victim"), path(&format!("temp-{}-1.rdb.1", process.0.id()))).unwrap();
    for (request, file, owner_only) in
        [("ACL SAVE", "users.acl", false), ("CONFIG REWRITE", "portcullis.conf", false), ("SAVE", "dump.rdb", true)]
    {
        assert_eq!(call(&mut wire, "SET a 1"), "+OK");
        if file != "dump.rdb" {
            std::fs::set_permissions(path(file), std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
        }
        let before = std::fs::symlink_metadata(path(file)).ok().map(|found| found.ino());
        assert_eq!(call(&mut wire, request), "+OK", "{request}");
        let after = std::fs::symlink_metadata(path(file)).unwrap();
        assert!(after.is_file() && Some(after.ino()) != before, "{request} has replaced {file}");
        assert_eq!(mode(&path(file)), if owner_only { 0o600 } else { 0o640 }, "{file}");
    }
    assert_eq!(mode(&path("ready")), 0o600);
    assert_eq!(call(&mut wire, "CONFIG SET appendonly yes"), "+OK");
    until(&mut wire, "INFO persistence", "aof_enabled:1");
    for entry in std::fs::read_dir(path("appendonlydir")).unwrap() {
        assert_eq!(mode(&entry.unwrap().path()), 0o600);
    }
    assert_eq!(std::fs::read_to_string(path("victim")).unwrap(), "precious");
    assert!(!path("nowhere").exists());
    drop(process);
    std::fs::remove_dir_all(&dir).unwrap();
}
