//! Requests as bytes: arrays of bulk strings.

/// Writes a number in decimal.
fn put_decimal(out: &mut Vec<u8>, number: usize) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Begins a request of this many arguments, its name included. They must follow.
pub fn begin(out: &mut Vec<u8>, args: usize) {
    out.push(b'*');
    put_decimal(out, args);
    out.extend_from_slice(b"\r\n");
}

/// Writes an argument.
pub fn put(out: &mut Vec<u8>, arg: &[u8]) {
    out.push(b'$');
    put_decimal(out, arg.len());
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(arg);
    out.extend_from_slice(b"\r\n");
}

/// Writes a whole request.
pub fn put_request(out: &mut Vec<u8>, args: &[&[u8]]) {
    begin(out, args.len());
    args.iter().for_each(|arg| put(out, arg));
}
