//! The ACL file, as the engine sees it: two functions that its driver gives it.

/// Reads a whole file; the error is the system's.
pub type ReadFile = Box<dyn FnMut() -> Result<Vec<u8>, String>>;

/// Replaces the content of a file; the error is the system's.
pub type WriteFile = Box<dyn FnMut(&[u8]) -> Result<(), String>>;

/// Reads and writes the ACL file, for `ACL LOAD` and `ACL SAVE`.
pub struct UsersFile {
    /// Its path, for error messages.
    pub path: String,
    /// Reads the file.
    pub load: ReadFile,
    /// Writes the file.
    pub save: WriteFile,
}
