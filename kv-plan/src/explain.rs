//! Two layouts beside each other, and what differs.

#[cfg(test)]
mod tests;

use std::fmt;

use crate::{BufferKey, CacheLayout, Mismatch, Part, Pool, PoolKind, Role, coverage, pair};

/// How the two sides compare in one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Compared {
    /// Both are the same.
    Same,
    /// They differ, and the planner takes care of it.
    Planned,
    /// They differ, and that does not fit.
    Misfit,
}

impl Compared {
    fn mark(self) -> &'static str {
        match self {
            Self::Same => "  ",
            Self::Planned => "~ ",
            Self::Misfit => "! ",
        }
    }
}

/// One line of an [`Explanation`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Line {
    /// What is compared.
    pub what: String,
    /// What prefill has.
    pub prefill: String,
    /// What decode has.
    pub decode: String,
    /// How they compare.
    pub compared: Compared,
}

/// Two layouts beside each other. Printed, it is a table with a mark before each line that differs, and the verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// The lines. As many as there are roles, at most, and some more.
    pub lines: Vec<Line>,
    /// Why the two sides do not fit, if they do not.
    pub misfit: Option<Mismatch>,
}

/// Shows what two ranks of two sides have in common, what differs and is planned, and what does not fit.
///
/// ```
/// use kv_plan::{Dtype, ModelShape, Side, explain};
///
/// let model = ModelShape::from_config_json(
///     r#"{"model_type": "deepseek_v3", "num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}"#,
/// )?;
/// let prefill = "pp=4".parse::<Side>()?.layouts(&model, 64, Dtype::Bf16)?;
/// let decode = "pp=1,layers=60".parse::<Side>()?.layouts(&model, 64, Dtype::Bf16)?;
/// let explanation = explain(&prefill[0], &decode[0]);
/// assert!(explanation.to_string().contains("! layers"));
/// assert!(explanation.misfit.is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn explain(prefill: &CacheLayout, decode: &CacheLayout) -> Explanation {
    let siblings = if prefill.validate().is_ok() { prefill.siblings() } else { Vec::new() };
    let covered = || coverage(&siblings.iter().collect::<Vec<_>>(), decode);
    let misfit = pair(prefill, decode).err().or_else(|| covered().err());
    let mut lines = vec![
        line("model", prefill, decode, false, |layout| {
            let model = &layout.model;
            format!("{}, {} layers ({:016x})", short(model.name()), model.layer_count(), model.fingerprint())
        }),
        line("rank", prefill, decode, true, |layout| layout.rank().to_string()),
        layers(prefill, decode),
        line("tensor ranks", prefill, decode, true, |layout| layout.shard.tp.to_string()),
        line("context-parallel ranks", prefill, decode, true, |layout| layout.shard.cp.to_string()),
        line("data-parallel groups", prefill, decode, true, |layout| layout.shard.dp.to_string()),
        line("draft layers", prefill, decode, is_one_sided(prefill, decode), |layout| {
            layout.shard.draft_layers.to_string()
        }),
        line("element type", prefill, decode, false, |layout| layout.dtype.to_string()),
        line("order of heads and tokens", prefill, decode, true, |layout| layout.order.to_string()),
    ];
    for part in [Part::Main, Part::Draft] {
        for kind in [PoolKind::Full, PoolKind::Window] {
            let pool = Pool { part, kind };
            let size = |layout: &CacheLayout| {
                let tokens = layout.page_tokens_of(pool).map(|tokens| format!("{tokens} tokens"));
                tokens.unwrap_or_else(|| "none".into())
            };
            if [prefill, decode].iter().any(|layout| layout.page_tokens_of(pool).is_some()) {
                lines.push(line(&format!("pages of the pool {pool}"), prefill, decode, true, size));
            }
        }
        for role in [Role::Key, Role::Value, Role::Latent, Role::Index, Role::Conv, Role::Recurrent] {
            tables(&mut lines, prefill, decode, part, role);
        }
    }
    Explanation { lines, misfit }
}

/// Whether only one side has a draft, which is fine.
fn is_one_sided(prefill: &CacheLayout, decode: &CacheLayout) -> bool {
    prefill.shard.draft_layers == 0 || decode.shard.draft_layers == 0
}

/// A line of what `show` shows; `planned` says whether it may differ.
fn line(
    what: &str,
    prefill: &CacheLayout,
    decode: &CacheLayout,
    planned: bool,
    show: impl Fn(&CacheLayout) -> String,
) -> Line {
    let (ours, theirs) = (show(prefill), show(decode));
    let compared = match ours == theirs {
        true => Compared::Same,
        false if planned => Compared::Planned,
        false => Compared::Misfit,
    };
    Line { what: what.into(), prefill: ours, decode: theirs, compared }
}

fn layers(prefill: &CacheLayout, decode: &CacheLayout) -> Line {
    let total = |layout: &CacheLayout| layout.shard.total_layers();
    let fit = total(prefill) == total(decode) && total(prefill) == prefill.model.layer_count();
    let mut line = line("layers", prefill, decode, true, |layout| {
        let stages: Vec<String> = layout.shard.stages.iter().map(u32::to_string).collect();
        format!("{} in {} stages ({})", total(layout), stages.len(), short(&stages.join("+")))
    });
    if !fit {
        line.compared = Compared::Misfit;
    }
    line
}

/// The tables of one part and role: how many, and what a token has in the first of them.
fn tables(lines: &mut Vec<Line>, prefill: &CacheLayout, decode: &CacheLayout, part: Part, role: Role) {
    let first = |layout: &'_ CacheLayout| {
        let own = layout.buffers.iter().filter(|buffer| (buffer.key.part, buffer.key.role) == (part, role));
        own.min_by_key(|buffer| buffer.key).cloned()
    };
    let (ours, theirs) = (first(prefill), first(decode));
    if ours.is_none() && theirs.is_none() {
        return;
    }
    // What a head has does not depend on how many of them a rank holds.
    let alike = match (&ours, &theirs) {
        (Some(a), Some(b)) if a.groups.is_empty() => a.token_bytes == b.token_bytes,
        (Some(a), Some(b)) => {
            let kinds = |groups: &[crate::HeadGroup]| -> Vec<(u32, u64)> {
                groups.iter().map(|group| (group.heads.total, group.head_bytes)).collect()
            };
            kinds(&a.groups) == kinds(&b.groups)
        }
        // One of the two stages has no such layer.
        _ => true,
    };
    let what = match part {
        Part::Main => format!("{role} tables of this rank"),
        Part::Draft => format!("draft {role} tables of this rank"),
    };
    let show = |layout: &CacheLayout| {
        let Some(buffer) = first(layout) else { return "none".into() };
        let heads: Vec<String> = buffer.groups.iter().map(|group| group.heads.to_string()).collect();
        let heads = if heads.is_empty() { "undivided".into() } else { heads.join(", ") };
        let BufferKey { part, role, .. } = buffer.key;
        let (count, token, page) = (layout.table_count(part, role), buffer.token_bytes, buffer.page_bytes);
        format!("{count}: {heads}, {token} bytes a token, {page} a page")
    };
    lines.push(line(&what, prefill, decode, alike, show));
}

/// A text that is not longer than a line.
fn short(text: &str) -> String {
    const LONGEST: usize = 40;
    let mut short: String = text.chars().filter(|char| !char.is_control()).take(LONGEST).collect();
    if text.chars().count() > LONGEST {
        short.push('…');
    }
    short
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wide = |of: fn(&Line) -> &str| self.lines.iter().map(|line| of(line).chars().count()).max().unwrap_or(0);
        let (what, prefill) = (wide(|line| &line.what), wide(|line| &line.prefill).max("prefill".len()));
        writeln!(f, "  {:what$}  {:prefill$}  decode", "", "prefill")?;
        for line in &self.lines {
            let mark = line.compared.mark();
            writeln!(f, "{mark}{:what$}  {:prefill$}  {}", line.what, line.prefill, line.decode)?;
        }
        let planned = self.lines.iter().any(|line| line.compared == Compared::Planned);
        match &self.misfit {
            Some(misfit) => write!(f, "they do not fit ({}): {misfit}", misfit.kind()),
            None if planned => write!(f, "they fit; what is marked with ~ differs, and is planned"),
            None => write!(f, "they fit, and nothing differs"),
        }
    }
}
