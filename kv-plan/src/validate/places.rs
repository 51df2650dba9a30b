//! Where buffers lie in their regions.

use crate::{Buffer, BufferKey, CacheLayout, LayoutError};

pub(super) fn inside(layout: &CacheLayout, buffer: &Buffer) -> Result<(), LayoutError> {
    let key = buffer.key;
    let Some(region_len) = layout.region_len(buffer.region) else {
        return Err(LayoutError::NoRegion { key, region: buffer.region, regions: layout.regions.len() });
    };
    match buffer.extent() {
        Some((_, end)) if end <= region_len => Ok(()),
        _ => Err(LayoutError::OutsideRegion {
            key,
            offset: buffer.offset,
            page_count: buffer.page_count,
            page_bytes: buffer.page_bytes,
            region_len,
        }),
    }
}

/// Where one buffer lies, to be ordered by region and start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    region: u32,
    start: u64,
    end: u64,
    stride: u64,
    page_bytes: u64,
    key: BufferKey,
}

/// Whether two buffers share bytes. Buffers whose pages are interleaved reach over each other without sharing any: those have
/// one stride, and each its own range of it.
pub(super) fn overlaps(layout: &CacheLayout) -> Result<(), LayoutError> {
    let mut places: Vec<Place> = layout
        .buffers
        .iter()
        .filter_map(|buffer| {
            let (start, end) = buffer.extent()?;
            let Buffer { region, page_stride: stride, page_bytes, key, .. } = *buffer;
            Some(Place { region, start, end, stride, page_bytes, key })
        })
        .collect();
    places.sort_unstable();
    // One pass: whatever starts before the end of those before it reaches over one of them.
    let (mut first, mut end) = (0, 0);
    for (number, place) in places.iter().enumerate() {
        let apart = places.get(first).is_none_or(|first| first.region != place.region) || place.start >= end;
        if apart {
            interleaved(places.get(first..number).unwrap_or_default())?;
            (first, end) = (number, place.end);
        }
        end = end.max(place.end);
    }
    interleaved(places.get(first..).unwrap_or_default())
}

/// Whether buffers that reach over each other share no bytes.
fn interleaved(cluster: &[Place]) -> Result<(), LayoutError> {
    let [first, others @ ..] = cluster else { return Ok(()) };
    if others.is_empty() {
        return Ok(());
    }
    let overlap = |a: &Place, b: &Place| LayoutError::Overlap { first: a.key, second: b.key, region: a.region };
    if let Some(other) = others.iter().find(|place| place.stride != first.stride) {
        return Err(overlap(first, other));
    }
    // Each page's place within one stride; no page is longer than that.
    let mut pages: Vec<(u64, &Place)> = cluster
        .iter()
        .map(|place| ((place.start - first.start).checked_rem(first.stride).unwrap_or_default(), place))
        .collect();
    pages.sort_unstable();
    for pair in pages.windows(2) {
        if let [(start, place), (next, next_place)] = pair
            && start.saturating_add(place.page_bytes) > *next
        {
            return Err(overlap(place, next_place));
        }
    }
    match (pages.first(), pages.last()) {
        // The last may reach into the next stride, where the first is again.
        (Some((start, place)), Some((last, last_place)))
            if last.saturating_add(last_place.page_bytes) > first.stride.saturating_add(*start) =>
        {
            Err(overlap(last_place, place))
        }
        _ => Ok(()),
    }
}
