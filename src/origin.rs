//! Where a request comes from.

use std::fmt;

/// The ranks that a request comes from: a prefill deployment by its name, and which of its data-parallel groups; the first where
/// nothing is said.
///
/// ```
/// use kvferry::Origin;
///
/// let only = Origin::from("prefill-a");
/// let third = Origin::from("prefill-a").group(2);
/// assert_eq!((only.to_string(), third.to_string()), ("prefill-a".into(), "prefill-a (group dp2)".into()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin<'a> {
    pub(crate) deployment: &'a str,
    pub(crate) dp: u32,
}

impl<'a> Origin<'a> {
    /// The same deployment's data-parallel group of this number, from 0.
    #[must_use]
    pub fn group(self, dp: u32) -> Self {
        Self { dp, ..self }
    }
}

impl<'a> From<&'a str> for Origin<'a> {
    fn from(deployment: &'a str) -> Self {
        Self { deployment, dp: 0 }
    }
}

impl<'a> From<&'a String> for Origin<'a> {
    fn from(deployment: &'a String) -> Self {
        Self::from(deployment.as_str())
    }
}

impl fmt::Display for Origin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dp {
            0 => f.write_str(self.deployment),
            dp => write!(f, "{} (group dp{dp})", self.deployment),
        }
    }
}
