//! All that was found out, and what follows from it.

use transport_rdma::{
    RdmaConfig,
    choice::{Choice, DeviceReport, choose, survey},
};

use crate::{
    args::Args,
    findings::{self, Finding, Level},
    loopback::{self, Loopback},
    source::Source,
    system::System,
};

#[derive(Debug)]
pub(crate) struct Report {
    /// Whether this program was built with RDMA.
    pub(crate) built: bool,
    pub(crate) simulated: bool,
    pub(crate) system: System,
    /// The library's name, or why there is none.
    pub(crate) library: Result<String, String>,
    pub(crate) devices: Vec<DeviceReport>,
    /// What the transport would use, or why nothing.
    pub(crate) chosen: Result<Vec<Choice>, String>,
    pub(crate) config: RdmaConfig,
    /// Bytes of the cache that is to be registered.
    pub(crate) cache: u64,
    pub(crate) loopbacks: Vec<Loopback>,
    pub(crate) findings: Vec<Finding>,
}

/// What it comes down to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The devices work, as far as was looked at.
    Usable(String),
    /// There is no RDMA here, and nobody expected any.
    Absent(String),
    /// Something has to be changed.
    Broken(String),
}

impl Report {
    pub(crate) fn make(args: &Args) -> Self {
        let (source, config) = (Source::new(args.simulated), args.config());
        let opened = source.open();
        let library = match &opened {
            Ok(verbs) => Ok(verbs.name().to_owned()),
            Err(reason) => Err(reason.clone()),
        };
        let (devices, chosen) = match &opened {
            Ok(verbs) => (
                survey(&**verbs).unwrap_or_default(),
                choose(&**verbs, &config.rails).map_err(|error| error.to_string()),
            ),
            Err(reason) => (Vec::new(), Err(reason.clone())),
        };
        drop(opened);
        let mut report = Self {
            built: source.is_built(),
            simulated: args.simulated,
            system: System::look(),
            library,
            devices,
            chosen,
            config,
            cache: args.cache.saturating_mul(1 << 20),
            loopbacks: Vec::new(),
            findings: Vec::new(),
        };
        if args.loopback {
            report.loopbacks = report.rails().iter().map(|choice| loopback::run(&source, &choice.device)).collect();
        }
        report.findings = findings::all(&report, args);
        report
    }

    /// What the transport would use.
    pub(crate) fn rails(&self) -> &[Choice] {
        self.chosen.as_deref().unwrap_or_default()
    }

    /// Peers whose receives fit the completion queue of the first rail; their sends share what is left.
    pub(crate) fn peers(&self) -> u32 {
        let used =
            self.devices.iter().find(|device| self.rails().first().is_some_and(|it| it.device == device.info.name));
        let Some(Ok(has)) = used.map(|device| &device.attributes) else { return 0 };
        let depth = self.config.completion_queue_depth.min(has.max_cqe);
        let receives = u32::try_from(self.config.events_per_peer).unwrap_or(u32::MAX).min(has.max_qp_wr);
        // One place at least is for sends.
        depth.saturating_sub(1) / receives.saturating_mul(self.config.queue_pairs as u32).max(1)
    }

    /// Whether the kernel or the library knows a device.
    pub(crate) fn has_devices(&self) -> bool {
        !self.devices.is_empty() || (!self.simulated && !self.system.devices.is_empty())
    }

    pub(crate) fn verdict(&self) -> Verdict {
        let broken = self.findings.iter().find(|finding| finding.level == Level::Broken);
        match (broken, self.rails()) {
            (Some(finding), _) => Verdict::Broken(finding.what.clone()),
            (None, []) => {
                let reason = match &self.library {
                    Err(reason) => reason.clone(),
                    Ok(_) => "this host has no RDMA device".into(),
                };
                Verdict::Absent(reason)
            }
            (None, rails) => Verdict::Usable(rails.iter().map(Choice::describe).collect::<Vec<_>>().join("; ")),
        }
    }
}

impl Verdict {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Usable(_) => "usable",
            Self::Absent(_) => "absent",
            Self::Broken(_) => "broken",
        }
    }

    /// In one sentence.
    pub(crate) fn sentence(&self) -> String {
        match self {
            Self::Usable(rails) => format!("RDMA can be used: {rails}"),
            Self::Absent(reason) => format!("no RDMA here: {reason}; kvferry uses QUIC"),
            Self::Broken(what) => format!("RDMA needs attention: {what}; until then kvferry may use QUIC"),
        }
    }

    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            Self::Usable(_) | Self::Absent(_) => 0,
            Self::Broken(_) => 1,
        }
    }
}
