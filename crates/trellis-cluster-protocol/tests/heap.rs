//! The nodes for which a call of the heap waits. `trellis check heap` visits every interleaving of small programs, and `trellis check
//! swarm` makes random calls at many nodes.

use trellis_cluster_protocol::NodeId;
use trellis_cluster_protocol::heap::{
    Answer, Call, Debt, Effect, Geometry, Heap, Input, Request, Separation, Step, StepOutcome, Zone,
};

/// Three heaps; node 0 keeps the directory.
struct Heaps {
    heaps: Vec<Heap>,
    network: Vec<(u16, Input)>,
    answers: Vec<Answer>,
}

impl Heaps {
    fn new() -> Heaps {
        let geometry = |me| Geometry {
            me: NodeId(me),
            directory: NodeId(0),
            first_page: 3,
            border_page: 67,
            end_page: 67,
            page_bytes: 4096,
            base_pages: 0,
        };
        let heaps = (0..3).map(|me| Heap::new(geometry(me))).collect();
        Heaps { heaps, network: Vec::new(), answers: Vec::new() }
    }

    fn step(&mut self, node: u16, input: Input) {
        let mut effects = Vec::new();
        self.heaps[usize::from(node)].step(input, &mut effects);
        for effect in effects {
            match effect {
                Effect::Send(to, message) => self.network.push((to.0, Input::Message(NodeId(node), message))),
                Effect::Done(_, answer) => self.answers.push(answer),
                Effect::Violation(from, what) => panic!("{from} sent {what}"),
            }
        }
    }

    fn deliver_all(&mut self) -> Answer {
        while let Some((to, input)) = self.network.pop() {
            self.step(to, input);
        }
        self.answers.pop().expect("a call was answered")
    }

    fn debt(&self, node: u16, waiter: u32) -> Option<Debt> {
        self.heaps[usize::from(node)].debt(waiter)
    }
}

#[test]
fn a_call_knows_whom_it_waits_for() {
    let mut nodes = Heaps::new();
    let request = Request { bytes: 100, align: 16, home: NodeId(1), separation: Separation::Never, zone: Zone::Lower };
    let mut call = Call::allocate(request, 7);
    let Step::Ask(input) = call.begin(&mut nodes.heaps[1]) else { panic!("nothing is surplus") };
    nodes.step(1, input);
    assert_eq!(nodes.debt(1, 7), Some(Debt::Directory), "only the directory hands pages out");
    let span = nodes.deliver_all();
    assert_eq!(nodes.debt(1, 7), None);
    assert!(matches!(call.go_on(&mut nodes.heaps[1], StepOutcome::Answer(span)), Step::Place(_)));
    nodes.step(1, Input::Adopt(7));
    let Some(Answer::Block(block)) = nodes.answers.pop() else { panic!("the span has room") };
    // Node 2 knows nothing and asks node 0; the answer names the owner.
    nodes.step(2, Input::Measure(block.offset, 8));
    assert_eq!(nodes.debt(2, 8), Some(Debt::Block(NodeId(0))));
    nodes.deliver_all();
    nodes.step(2, Input::Measure(block.offset, 9));
    assert_eq!(nodes.debt(2, 9), Some(Debt::Block(NodeId(1))));
    // The directory knows the owner of the block at once.
    nodes.step(0, Input::Measure(block.offset, 8));
    assert_eq!(nodes.debt(0, 8), Some(Debt::Block(NodeId(1))));
    nodes.deliver_all();
    assert_eq!((nodes.debt(2, 9), nodes.debt(0, 8)), (None, None));
}
