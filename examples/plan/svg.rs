//! The picture: the ranks of both sides as boxes, what moves between them as ribbons, as wide as the bytes are many; and of a
//! request, the slices of one buffer.

use kv_plan::{CacheLayout, Part, PlannedSlice, Rank};
use svg::{
    Document, Node,
    node::element::{Group, Path, Rectangle, Text, Title, path::Data},
};

use crate::cluster::{Cluster, Transfer};

/// Ribbons that are drawn at most; a picture of more shows nothing.
const RIBBONS: usize = 400;
/// Slices of a buffer that are drawn at most.
const SLICES: usize = 200;

const WIDTH: f64 = 960.0;
const BOX: f64 = 190.0;
/// Of all ribbons together.
const HEIGHT: f64 = 640.0;
const GAP: f64 = 14.0;
const TOP: f64 = 70.0;
/// The thinnest ribbon that can be seen.
const THINNEST: f64 = 2.0;
const COLOURS: [&str; 8] = ["#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#b07aa1", "#edc948", "#9c755f"];

/// Draws what moves.
pub(crate) fn draw(cluster: &Cluster, transfers: &[Transfer]) -> String {
    let shown = transfers.get(..RIBBONS).unwrap_or(transfers);
    let weights: Vec<f64> = shown.iter().map(weight).collect();
    let total: f64 = weights.iter().sum::<f64>().max(1.0);
    let heights: Vec<f64> = weights.iter().map(|weight| (weight / total * HEIGHT).max(THINNEST)).collect();
    let of = |rank: fn(&Transfer) -> Rank| -> Vec<Rank> { shown.iter().map(rank).collect() };
    let left = column(&cluster.prefill, &of(|transfer| transfer.pairing.prefill_rank()), &heights);
    let right = column(&cluster.decode, &of(|transfer| transfer.pairing.decode_rank()), &heights);
    let bottom = left.bottom.max(right.bottom);
    let mut document = Document::new().set("font-family", "sans-serif").set("font-size", 12);
    document.append(Rectangle::new().set("width", "100%").set("height", "100%").set("fill", "white"));
    let (name, layers) = (cluster.model.name(), cluster.model.layer_count());
    document.append(text(24.0, 28.0, format!("{name}, {layers} layers: who sends what to whom")).set("font-size", 16));
    let inner = WIDTH - 24.0 - BOX;
    document.append(text(24.0, 54.0, "prefill"));
    document.append(text(inner, 54.0, "decode"));
    for (number, transfer) in shown.iter().enumerate() {
        let places = left.places.get(number).zip(right.places.get(number)).zip(heights.get(number));
        let Some(((from, to), height)) = places else { continue };
        let sender = left.boxes.iter().position(|(rank, ..)| *rank == transfer.pairing.prefill_rank());
        let colour = COLOURS.get(sender.unwrap_or(0) % COLOURS.len()).copied().unwrap_or("#888");
        document.append(ribbon(transfer, colour, (24.0 + BOX, *from), (inner, *to), *height));
    }
    for (x, column) in [(24.0, &left), (inner, &right)] {
        for (rank, holds, y, height) in &column.boxes {
            document.append(rank_box(x, *y, *height, *rank, holds));
        }
    }
    let mut end = bottom + 24.0;
    if transfers.len() > shown.len() {
        let rest = transfers.len() - shown.len();
        document.append(text(24.0, end, format!("and {rest} more pairs of ranks that are not drawn")));
        end += 24.0;
    }
    if let Some(strip) = shown.iter().find_map(|transfer| strip(transfer, end)) {
        document.append(strip);
        end += 130.0;
    }
    document.set("viewBox", (0, 0, WIDTH, end)).set("width", WIDTH).set("height", end).to_string()
}

/// Bytes that move, or of a request's states where nothing moves by the token.
fn weight(transfer: &Transfer) -> f64 {
    let bytes = if transfer.bytes > 0 { transfer.bytes } else { transfer.pairing.bytes_per_request() };
    bytes as f64
}

/// One side: its boxes (rank, what it holds, top and height), and where each ribbon begins or ends.
struct Column {
    boxes: Vec<(Rank, String, f64, f64)>,
    places: Vec<f64>,
    bottom: f64,
}

fn column(side: &[CacheLayout], ranks: &[Rank], heights: &[f64]) -> Column {
    let mut column = Column { boxes: Vec::new(), places: vec![TOP; ranks.len()], bottom: TOP };
    for layout in side.iter().filter(|layout| ranks.contains(&layout.rank())) {
        let top = column.bottom;
        let mut y = top + 4.0;
        let own = ranks.iter().zip(heights).zip(&mut column.places).filter(|((rank, _), _)| **rank == layout.rank());
        for ((_, height), place) in own {
            *place = y;
            y += height;
        }
        let height = (y - top + 4.0).max(40.0);
        column.boxes.push((layout.rank(), holds(layout), top, height));
        column.bottom = top + height + GAP;
    }
    column
}

/// What a rank holds, in a few words.
fn holds(layout: &CacheLayout) -> String {
    let layers = layout.shard.own_layers(Part::Main);
    let heads = layout.buffers.iter().find_map(kv_plan::Buffer::heads);
    let heads = heads.map(|heads| format!(", {heads}")).unwrap_or_default();
    format!("layers {}..{}{heads}", layers.start, layers.end)
}

fn rank_box(x: f64, y: f64, height: f64, rank: Rank, holds: &str) -> Group {
    let frame = Rectangle::new()
        .set("class", "rank")
        .set("x", x)
        .set("y", y)
        .set("width", BOX)
        .set("height", height)
        .set("rx", 4)
        .set("fill", "#f7f7f7")
        .set("stroke", "#444");
    Group::new()
        .add(frame)
        .add(text(x + 8.0, y + 17.0, rank.to_string()).set("font-weight", "bold"))
        .add(text(x + 8.0, y + 33.0, holds).set("font-size", 11))
}

fn ribbon(transfer: &Transfer, colour: &str, from: (f64, f64), to: (f64, f64), height: f64) -> Path {
    let middle = f64::midpoint(from.0, to.0);
    let data = Data::new()
        .move_to(from)
        .cubic_curve_to((middle, from.1, middle, to.1, to.0, to.1))
        .line_to((to.0, to.1 + height))
        .cubic_curve_to((middle, to.1 + height, middle, from.1 + height, from.0, from.1 + height))
        .close();
    let (pairing, bytes) = (&transfer.pairing, transfer.bytes);
    let (prefill, decode) = (pairing.prefill_rank(), pairing.decode_rank());
    let title = format!("{prefill} to {decode}: {} tables, {bytes} bytes", pairing.tables().len());
    Path::new()
        .set("class", "ribbon")
        .set("d", data)
        .set("fill", colour)
        .set("fill-opacity", 0.55)
        .add(Title::new(title))
}

/// The slices of a transfer's first buffer: where they are at the sender, above, and at the receiver, below.
fn strip(transfer: &Transfer, top: f64) -> Option<Group> {
    let slices = transfer.slices.as_ref()?;
    let first = slices.first()?;
    let of_buffer: Vec<&PlannedSlice> = slices.iter().take_while(|slice| slice.key == first.key).collect();
    let shown = of_buffer.get(..SLICES).unwrap_or(&of_buffer);
    let (prefill, decode) = (transfer.pairing.prefill_rank(), transfer.pairing.decode_rank());
    let count = of_buffer.len();
    let title = format!("{} from {prefill} (above) to {decode} (below): {count} slices", first.key);
    let mut strip = Group::new().add(text(24.0, top, title));
    let scale = |offset: fn(&PlannedSlice) -> u64| {
        let start = shown.iter().map(|slice| offset(slice)).min().unwrap_or(0);
        let end = shown.iter().map(|slice| offset(slice).saturating_add(slice.len)).max().unwrap_or(1);
        (start, (WIDTH - 48.0) / (end.saturating_sub(start)).max(1) as f64)
    };
    let (above, below) = (scale(|slice| slice.src_offset), scale(|slice| slice.dst_offset));
    for (number, slice) in shown.iter().enumerate() {
        let colour = COLOURS.get(number % COLOURS.len()).copied().unwrap_or("#888");
        let x = |offset: u64, (start, scale): (u64, f64)| 24.0 + offset.saturating_sub(start) as f64 * scale;
        let wide = |(_, scale): (u64, f64)| (slice.len as f64 * scale).max(1.0);
        let (from, to) = (x(slice.src_offset, above), x(slice.dst_offset, below));
        let bar = |x: f64, y: f64, width: f64| {
            Rectangle::new().set("x", x).set("y", y).set("width", width).set("height", 16).set("fill", colour)
        };
        let (from_width, to_width) = (wide(above), wide(below));
        let data = Data::new()
            .move_to((from, top + 28.0))
            .line_to((from + from_width, top + 28.0))
            .line_to((to + to_width, top + 84.0))
            .line_to((to, top + 84.0))
            .close();
        strip = strip
            .add(bar(from, top + 12.0, from_width).set("class", "slice"))
            .add(bar(to, top + 84.0, to_width))
            .add(Path::new().set("d", data).set("fill", colour).set("fill-opacity", 0.25));
    }
    Some(strip)
}

fn text(x: f64, y: f64, content: impl Into<String>) -> Text {
    Text::new(content).set("x", x).set("y", y)
}
