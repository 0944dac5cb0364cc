//! The limits of waits of the switch `openflow`, which the documentation lists in every build.

use trellis_base::{Deadline, Limit};

const WHO: &str = "the switch `openflow`";

/// How long `trellis switch run` waits for a switch of another program.
pub const CONNECTING: Deadline = Deadline {
    who: "`trellis switch run`",
    waits_for: "a switch of another program, to connect",
    limit: Limit::seconds(60),
    then: "the run ends, with the address",
    tested: "crates/trellis-switch/tests/openflow.rs a_switch_of_another_kind_is_left",
};
/// How long connecting, and writing a message, may take.
pub(crate) const CONNECT: Deadline = Deadline {
    who: WHO,
    waits_for: "a connection, and a message to be taken",
    limit: Limit::seconds(5),
    then: "the next try, or the connection is closed",
    tested: "crates/trellis-switch/tests/openflow.rs a_switch_that_takes_no_connection_is_named",
};
/// How long hello and features may take.
pub(crate) const HELLO: Deadline = Deadline {
    who: WHO,
    waits_for: "hello, and what the other side is",
    limit: Limit::seconds(10),
    then: "the connection is closed",
    tested: "crates/trellis-switch/tests/openflow.rs who_connects_and_says_nothing_is_hung_up",
};
/// How long an answer may take.
pub(crate) const ANSWER: Deadline = Deadline {
    who: WHO,
    waits_for: "an answer",
    limit: Limit::seconds(10),
    then: "an error of the call",
    tested: "crates/trellis-switch/tests/openflow.rs a_switch_that_does_not_answer_is_an_error_of_the_call",
};
/// After this much silence the peer counts as dead.
pub(crate) const DEAD: Deadline = Deadline {
    who: WHO,
    waits_for: "any message of the other side",
    limit: Limit::seconds(15),
    then: "the connection is closed, and made again",
    tested: "crates/trellis-switch/tests/openflow.rs a_switch_that_is_silent_is_hung_up_and_may_come_again",
};
/// How long a call waits for a connection.
pub(crate) const CONNECTION: Deadline = Deadline {
    who: WHO,
    waits_for: "a connection that was lost, or is lost again and again",
    limit: Limit::seconds(20),
    then: "an error of the call",
    tested: "crates/trellis-switch/tests/openflow.rs a_switch_that_hangs_up_at_each_question_is_an_error_of_the_call",
};
/// Longer than any software switch takes to count the packets that have passed.
pub(crate) const COUNT: Deadline = Deadline {
    who: WHO,
    waits_for: "counters to move",
    limit: Limit::seconds(2),
    then: "what was counted until then; the rest counts as lost",
    tested: "crates/trellis-switch/tests/openflow.rs what_no_flow_counts_is_lost",
};
/// How long each operation of Open vSwitch may take.
pub(crate) const OPEN_VSWITCH: Deadline = Deadline {
    who: "a lab with Open vSwitch",
    waits_for: "anything of it",
    limit: Limit::seconds(20),
    then: "the lab ends, with the program's last words",
    tested: "it takes an Open vSwitch that hangs",
};
