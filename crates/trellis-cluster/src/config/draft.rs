//! A configuration while its keys are read: what belongs to one of several choices waits until all keys are known.
//!
//! Promises: a finished configuration has one way to find the nodes and one link, each with what belongs to it. Keys that
//! exclude each other are refused if one file or one command line gives them; a stronger source replaces a weaker one.

use std::collections::BTreeMap;

use trellis_transport::{Faults, Multicast};

use super::choices::{Engine, LinkKind};
use super::{Config, ConfigError, Origin, Peers, Rendezvous};

/// The name of a job that has no other.
pub(super) const JOB: &str = "trellis";
/// The keys that say how nodes are found. In an environment, which several programs write, the first of them counts.
const WAYS: [&str; 4] = ["join", "nodes", "rendezvous", "engine"];

/// The values that are known so far.
#[derive(Default)]
pub(super) struct Draft {
    pub(super) config: Config,
    pub(super) nodes: Vec<String>,
    pub(super) join: Option<String>,
    pub(super) engine: EngineAsked,
    pub(super) rendezvous: Option<String>,
    pub(super) rendezvous_nodes: usize,
    pub(super) rendezvous_job: Option<String>,
    /// Whether the key `coherence` says that there are leases instead of a protocol.
    pub(super) has_leases: bool,
    pub(super) fabric_provider: Option<String>,
    pub(super) link_faults: Option<Faults>,
    pub(super) multicast: Multicast,
}

/// The value of the key `engine`.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum EngineAsked {
    /// The one whose environment this is, if there is one.
    #[default]
    Any,
    /// None, whatever the environment says.
    No,
    One(Engine),
}

impl std::str::FromStr for EngineAsked {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "auto" => Ok(EngineAsked::Any),
            "none" => Ok(EngineAsked::No),
            _ => word.parse().map(EngineAsked::One).map_err(|_| {
                let words = Engine::WORDS.join(", ");
                format!("`{word}` is none of the choices; accepted: auto, none, {words}")
            }),
        }
    }
}

impl Draft {
    /// Puts the parts together. `recognised` is the engine whose environment this is.
    pub(super) fn finish(
        &mut self,
        origins: &BTreeMap<&'static str, Origin>,
        recognised: Option<Engine>,
    ) -> Result<(), ConfigError> {
        self.config.peers = self.peers(origins, recognised)?;
        self.finish_link(origins)
    }

    fn peers(
        &self,
        origins: &BTreeMap<&'static str, Origin>,
        recognised: Option<Engine>,
    ) -> Result<Peers, ConfigError> {
        let origin = |key| origins.get(key).cloned().unwrap_or(Origin::Default(key));
        let is_given = |way: &&str| match *way {
            "join" => self.join.is_some(),
            "nodes" => !self.nodes.is_empty(),
            "rendezvous" => self.rendezvous.is_some(),
            _ => matches!(self.engine, EngineAsked::One(_)),
        };
        let given: Vec<&'static str> = WAYS.into_iter().filter(is_given).collect();
        let strongest = given.iter().map(|way| origin(way).strength()).max();
        let mut chosen = given.into_iter().filter(|way| Some(origin(way).strength()) == strongest);
        let way = chosen.next();
        if let (Some(first), Some(second)) = (way, chosen.next())
            && !matches!(origin(first), Origin::Variable(_))
        {
            return Err(origin(second).error(format!(
                "the nodes are found in another way already ({}), and the keys nodes, join, rendezvous and engine exclude \
                 each other; leave one of them out",
                origin(first)
            )));
        }
        let has_job = self.rendezvous_job.as_deref().is_some_and(|job| job != JOB);
        for (key, is_given) in [("rendezvous_nodes", self.rendezvous_nodes > 0), ("rendezvous_job", has_job)] {
            if is_given && self.rendezvous.is_none() {
                let sentence = "there is no rendezvous; set rendezvous = \"host:port\", or leave this key out";
                return Err(origin(key).error(sentence));
            }
        }
        Ok(match (way, self.engine) {
            (Some("join"), _) => Peers::Join(self.join.clone().unwrap_or_default()),
            (Some("nodes"), _) => Peers::Listed(self.nodes.clone()),
            (Some("rendezvous"), _) if self.rendezvous_nodes == 0 => {
                return Err(origin("rendezvous")
                    .error("how many nodes meet there is not said; set rendezvous_nodes to their number"));
            }
            (Some("rendezvous"), _) => Peers::Rendezvous(Rendezvous {
                address: self.rendezvous.clone().unwrap_or_default(),
                nodes: self.rendezvous_nodes,
                job: self.rendezvous_job.clone().unwrap_or_else(|| JOB.to_owned()),
            }),
            (_, EngineAsked::One(engine)) => Peers::Engine(engine),
            (_, EngineAsked::Any) => recognised.map_or(Peers::Listed(Vec::new()), Peers::Engine),
            (_, EngineAsked::No) => Peers::Listed(Vec::new()),
        })
    }

    /// Gives the link what belongs to it, and refuses what belongs to another one.
    fn finish_link(&mut self, origins: &BTreeMap<&'static str, Origin>) -> Result<(), ConfigError> {
        let refuse = |key, sentence| Err(origins.get(key).cloned().unwrap_or(Origin::Default(key)).error(sentence));
        let provider_given = self.fabric_provider.clone();
        let faults_given = self.link_faults.clone();
        if provider_given.is_some() && !matches!(self.config.link, LinkKind::Fabric { .. }) {
            let sentence = "only the link fabric has providers; set link = fabric, or leave this key out";
            return refuse("fabric_provider", sentence);
        }
        let is_group = matches!(self.multicast, Multicast::Group { .. });
        if is_group && !matches!(self.config.link, LinkKind::Udp { .. }) {
            return refuse("multicast_group", "only the link udp multicasts; set link = udp, or leave this key out");
        }
        match &mut self.config.link {
            LinkKind::Udp { faults, multicast } => (*faults, *multicast) = (faults_given, self.multicast),
            LinkKind::Fabric { .. } if faults_given.is_some() => {
                let sentence =
                    "the link fabric has none, because libfabric makes good what a network loses; set link = udp";
                return refuse("link_faults", sentence);
            }
            LinkKind::Fabric { provider } => *provider = provider_given,
            LinkKind::Auto | LinkKind::Tcp if faults_given.is_some() => {
                let sentence =
                    "the link tcp has none, because the kernel makes good what a network loses; set link = udp";
                return refuse("link_faults", sentence);
            }
            LinkKind::Shm if faults_given.is_some() => {
                let sentence = "the link shm has none, because shared memory loses nothing; set link = udp";
                return refuse("link_faults", sentence);
            }
            LinkKind::Auto | LinkKind::Tcp | LinkKind::Shm => {}
        }
        Ok(())
    }
}
