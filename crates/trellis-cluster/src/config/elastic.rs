//! The settings that a process gets after its start: from the running cluster that it joins, or from an engine.
//!
//! Promises: a process that takes the text of [`Config::text_for_joiners`] agrees with the cluster in everything that
//! [`Config::agreement`] names. The text must never contain a secret, or a key that each process chooses itself
//! (catcher, record).

use super::draft::Draft;
use super::values::Raw;
use super::{Config, ConfigError, Origin, Peers, Reader, key};

impl Config {
    /// The keys that a process takes from the cluster that it joins, as `key=value` lines.
    pub fn text_for_joiners(&self) -> String {
        let ranges: Vec<String> = self.coherence_ranges.iter().map(ToString::to_string).collect();
        let keys = [
            ("nodes", self.nodes().join(",")),
            ("manager", self.manager.to_string()),
            ("joiners_max", self.joiners_max.to_string()),
            ("region_bytes", self.region_bytes.to_string()),
            ("heap_bytes", (self.region_bytes - self.heap_start()).to_string()),
            ("base_address", format!("{:#x}", self.base_address)),
            ("page_bytes", self.page_bytes.to_string()),
            ("coherence", self.coherence.to_string()),
            ("coherence_ranges", ranges.join(",")),
            ("home", self.home.to_string()),
            ("link", self.link.to_string()),
            ("security", self.security_in_use().to_string()),
            ("silence_seconds_max", self.silence_seconds_max.to_string()),
            ("wait_seconds_max", self.wait_seconds_max.to_string()),
            ("fault_seconds_max", self.fault_seconds_max.to_string()),
        ];
        keys.iter().map(|(name, value)| format!("{name}={value}\n")).collect()
    }

    /// Applies the text that [`Config::text_for_joiners`] of a node of the cluster returned. The error is a sentence.
    pub fn take_from_cluster(&mut self, text: &str) -> Result<(), String> {
        let mut draft = Draft { config: self.clone(), ..Draft::default() };
        for line in text.lines() {
            let (name, value) =
                line.split_once('=').ok_or("it says something that this version does not understand")?;
            let known = key(name).ok_or_else(|| format!("it speaks of {name}, which this version does not know"))?;
            let raw = Raw::Text(value.to_owned());
            (known.apply)(&mut draft, &raw).map_err(|wrong| format!("its {name}={value}: {}", wrong.sentence))?;
            draft.config.places.insert(known.name, format!("{name}={value} (as in the cluster)"));
        }
        draft.config.peers = Peers::Listed(draft.nodes);
        *self = draft.config;
        Ok(())
    }

    /// Whether the nodes are still to be found through an engine or at a rendezvous.
    pub fn is_placed_by_engine(&self) -> bool {
        matches!(self.peers, Peers::Engine(_) | Peers::Rendezvous(_))
    }

    /// Sets this node's number and the addresses of all nodes, and checks what depends on them.
    pub(crate) fn place(&mut self, node: usize, nodes: Vec<String>) -> Result<(), ConfigError> {
        (self.node, self.peers) = (node, Peers::Listed(nodes));
        let origins = self.places.iter().map(|(key, place)| (*key, Origin::Said(place.clone()))).collect();
        let draft = Draft { config: self.clone(), ..Draft::default() };
        let reader = Reader { draft, origins, is_libivy: false };
        reader.check_placed()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CoherenceRange, Home, Security};
    use super::*;

    #[test]
    fn whoever_takes_what_it_is_told_agrees() {
        let cluster = Config {
            peers: Peers::Listed(vec!["127.0.0.1:4001".to_owned(), "127.0.0.1:4002".to_owned()]),
            manager: 1,
            joiners_max: 3,
            region_bytes: 1 << 20,
            heap_bytes: Some(256 << 10),
            base_address: 0x2000_0000_0000,
            page_bytes: 16 << 10,
            coherence: "delay(lock(dynamic(redirect)))".parse().unwrap(),
            coherence_ranges: vec![CoherenceRange { first: 0, end: 65_536, protocol: "ivy".parse().unwrap() }],
            home: Home::Interleaved,
            security: Security::Auto,
            silence_seconds_max: 3,
            ..Config::default()
        };
        let mut joins = Config { peers: Peers::Join("127.0.0.1:4001".to_owned()), ..Config::default() };
        assert!(joins.is_on_loopback());
        joins.take_from_cluster(&cluster.text_for_joiners()).unwrap();
        assert_eq!(joins.agree(&cluster.agreement()), Ok(()));
        assert_eq!(joins.heap_start(), cluster.heap_start());
        // The process's own settings do not count, even for keys that the cluster's nodes leave at the default.
        let unsaid = Config { heap_bytes: None, ..cluster.clone() };
        joins.heap_bytes = Some(16 << 10);
        joins.take_from_cluster(&unsaid.text_for_joiners()).unwrap();
        assert_eq!((joins.agree(&unsaid.agreement()), joins.heap_start()), (Ok(()), 512 << 10));
        assert_eq!((joins.nodes().len(), joins.capacity(), joins.silence_seconds_max), (2, 5, 3));
        assert_eq!(joins.coherence_ranges, cluster.coherence_ranges);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let mut joins = Config::default();
        assert!(joins.take_from_cluster("colour=red\n").unwrap_err().contains("colour"));
        assert!(joins.take_from_cluster("page_bytes=blue\n").unwrap_err().contains("page_bytes=blue"));
        assert!(joins.take_from_cluster("nonsense\n").is_err());
    }
}
