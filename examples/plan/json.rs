//! The output for programs.

use std::io::{self, Write};

use kv_plan::PlannedSlice;
use serde::Serialize;

use crate::cluster::Transfer;

#[derive(Serialize)]
struct Document {
    transfers: Vec<JsonTransfer>,
    bytes: u64,
}

#[derive(Serialize)]
struct JsonTransfer {
    from: String,
    to: String,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    slices: Option<Vec<JsonSlice>>,
}

#[derive(Serialize)]
struct JsonSlice {
    part: String,
    role: String,
    layer: u32,
    src_offset: u64,
    dst_offset: u64,
    len: u64,
}

impl From<&PlannedSlice> for JsonSlice {
    fn from(slice: &PlannedSlice) -> Self {
        Self {
            part: slice.key.part.to_string(),
            role: slice.key.role.to_string(),
            layer: slice.key.layer,
            src_offset: slice.src_offset,
            dst_offset: slice.dst_offset,
            len: slice.len,
        }
    }
}

#[derive(Serialize)]
struct ErrorDocument<'a> {
    error: ErrorBody<'a>,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    kind: &'a str,
    message: &'a str,
}

pub(crate) fn print(out: &mut impl Write, transfers: &[Transfer], bytes: u64) -> io::Result<()> {
    let document = Document {
        transfers: transfers
            .iter()
            .map(|transfer| JsonTransfer {
                from: transfer.pairing.prefill_rank().to_string(),
                to: transfer.pairing.decode_rank().to_string(),
                bytes: transfer.bytes,
                slices: transfer.slices.as_ref().map(|slices| slices.iter().map(JsonSlice::from).collect()),
            })
            .collect(),
        bytes,
    };
    line(out, &document)
}

pub(crate) fn error(out: &mut impl Write, kind: &str, message: &str) -> io::Result<()> {
    line(out, &ErrorDocument { error: ErrorBody { kind, message } })
}

fn line(out: &mut impl Write, document: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, document)?;
    writeln!(out)
}
