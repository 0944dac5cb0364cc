//! The table of figures and their targets. The names are those of `trellis bench … --json`.

use std::fmt;

/// The target of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Target {
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
    /// Less than this.
    Below(f64),
    /// Reported, without a bound.
    None,
}

impl Target {
    /// Whether a value reaches it; not-a-number never does.
    pub(crate) fn is_met(self, value: f64) -> bool {
        match self {
            Target::AtMost(bound) => value <= bound,
            Target::AtLeast(bound) => value >= bound,
            Target::Below(bound) => value < bound,
            Target::None => value.is_finite(),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::AtMost(bound) => write!(formatter, "<= {bound}"),
            Target::AtLeast(bound) => write!(formatter, ">= {bound}"),
            Target::Below(bound) => write!(formatter, "< {bound}"),
            Target::None => formatter.write_str("reported"),
        }
    }
}

/// One number that a benchmark prints.
#[derive(Debug)]
pub(crate) struct Figure {
    /// Its name in the JSON object.
    pub(crate) field: &'static str,
    /// Its description, with its unit.
    pub(crate) words: &'static str,
    /// Its target.
    pub(crate) target: Target,
}

/// One call of `trellis bench`, of `trellis check`, of `trellis reproduce`, or of psort.
#[derive(Debug)]
pub(crate) struct Benchmark {
    /// The subcommand of `trellis bench`, or [`CHECK`], or [`REPRODUCE`], or `psort`.
    pub(crate) name: &'static str,
    /// The arguments after the name.
    pub(crate) arguments: &'static [&'static str],
    /// The figures that are taken from its result.
    pub(crate) figures: &'static [Figure],
}

impl Benchmark {
    /// The name and the arguments.
    pub(crate) fn title(&self) -> String {
        std::iter::once(self.name).chain(self.arguments.iter().copied()).collect::<Vec<_>>().join(" ")
    }

    /// Whether it needs the command built with the feature `fabric`.
    pub(crate) fn is_of_fabric(&self) -> bool {
        self.arguments.first() == Some(&FABRIC)
    }

    /// Whether it needs the command built with the feature `bpf`, and root.
    pub(crate) fn is_of_bpf(&self) -> bool {
        self.arguments.contains(&BPF)
    }
}

/// The first argument of benchmarks that need the feature `fabric`.
const FABRIC: &str = "--fabric";

/// The value of the switch argument of benchmarks that need the feature `bpf`.
const BPF: &str = "bpf";

/// The name of a benchmark that is a call of `trellis check`; its arguments select which.
pub(crate) const CHECK: &str = "check";

/// The name of the benchmark of programs with threads, which this task runs itself.
pub(crate) const THREADS: &str = "threads";

/// The name of a benchmark that is a call of `trellis reproduce`.
pub(crate) const REPRODUCE: &str = "reproduce";

const fn figure(field: &'static str, words: &'static str, target: Target) -> Figure {
    Figure { field, words, target }
}

/// All measurements.
pub(crate) const TARGETS: &[Benchmark] = &[
    Benchmark {
        name: THREADS,
        arguments: &[],
        figures: &[
            figure("integrate_ratio", "2 threads alone / on 2 nodes: a loop with a sum", Target::AtLeast(0.97)),
            figure("matmul_1024_ratio", "2 threads alone / on 2 nodes: matrix product 1024", Target::AtLeast(0.93)),
            figure("jacobi_2000_ratio", "2 threads alone / on 2 nodes: Jacobi 2000 x 2000, 200 steps", Target::None),
            figure("jacobi_2000_no_races_ratio", "the same with `--races none`", Target::AtLeast(0.85)),
            figure("parmacs_lu_no_races_ratio", "LU 2048 of pthreads with `--races none`", Target::AtLeast(0.85)),
            figure("parmacs_fft_no_races_ratio", "the same: FFT of 4,194,304 points", Target::AtLeast(0.6)),
            figure("parmacs_radix_no_races_ratio", "the same: radix sort of 33,554,432 keys", Target::AtLeast(0.5)),
            figure("parmacs_barnes_no_races_ratio", "the same: Barnes-Hut of 65,536 bodies", Target::AtLeast(0.7)),
            figure("tasks_ratio", "2 threads alone / on 2 nodes: a tree of 13,528 tasks", Target::None),
            figure("task_us", "the same, with its start and end, per task (us)", Target::None),
            figure("region_us", "an empty parallel region on 2 nodes (us)", Target::None),
            figure("region_messages", "messages of both nodes for it", Target::None),
            figure("pigz_ratio", "2 threads alone / on 2 nodes: pigz", Target::AtLeast(0.7)),
            figure("povray_ratio", "2 threads alone / on 2 nodes: povray", Target::AtLeast(0.85)),
            figure("one_thread_ratio", "1 thread alone / under `trellis threads -n 2`", Target::AtLeast(0.98)),
            figure("start_and_end_ms", "`trellis threads -n 2 true` (ms)", Target::AtMost(150.0)),
        ],
    },
    Benchmark {
        name: "fault",
        arguments: &["--nodes", "2"],
        figures: &[
            figure("link_rtt_us_p50", "link round trip, 32 B out and 4160 B back, polling (us)", Target::None),
            figure("local_fault_us_p50", "local fault in the faulting thread (us)", Target::None),
            figure("floor_us", "floor = round trip + local fault (us)", Target::None),
            figure("read_us_p50", "remote read fault, peer idle (us)", Target::None),
            figure("read_over_floor", "remote read fault / floor", Target::AtMost(1.4)),
            figure("write_over_floor", "remote write fault / floor", Target::AtMost(1.45)),
            figure("upgrade_over_floor", "upgrade of a read copy / floor", Target::AtMost(1.4)),
            figure("busy_read_us_p50", "remote read fault, peer computes, p50 (us)", Target::None),
            figure("busy_read_us_p99", "remote read fault, peer computes, p99 (us)", Target::AtMost(5000.0)),
        ],
    },
    Benchmark {
        name: "fault",
        arguments: &["--nodes", "2", "--catch", "handler"],
        figures: &[
            figure("read_us_p50", "remote read fault, catcher handler (us)", Target::None),
            figure("write_us_p50", "remote write fault, catcher handler (us)", Target::None),
        ],
    },
    Benchmark {
        name: "thrash",
        arguments: &["--nodes", "2"],
        figures: &[figure(
            "increments_per_second",
            "two nodes in turn: increments per second",
            Target::AtLeast(20_000.0),
        )],
    },
    Benchmark {
        name: "thrash",
        arguments: &["--nodes", "16", "--count", "50"],
        figures: &[
            figure("count", "16 nodes in turn: increments reached", Target::AtLeast(50.0)),
            figure("seconds", "16 nodes in turn: time to 50 (s)", Target::None),
        ],
    },
    Benchmark {
        name: "stream",
        arguments: &["--nodes", "2"],
        figures: &[
            figure("read_gb_per_s_p50", "sequential read of 256 MiB (GB/s)", Target::None),
            figure("raw_tcp_gb_per_s_p50", "plain TCP, as much memory on both sides (GB/s)", Target::None),
            figure("raw_tcp_in_cache_gb_per_s_p50", "plain TCP, one small buffer (GB/s)", Target::None),
            figure("read_over_raw_tcp", "sequential read / plain TCP, as much memory", Target::AtLeast(0.75)),
        ],
    },
    Benchmark {
        name: "barrier",
        arguments: &["--nodes", "2"],
        figures: &[
            figure("barrier_us_p50", "barrier, 2 nodes (us)", Target::None),
            figure("barrier_over_link_rtt", "barrier / link round trip", Target::AtMost(2.0)),
        ],
    },
    Benchmark {
        name: "barrier",
        arguments: &["--nodes", "2", "--neighbours", "1"],
        figures: &[figure("barrier_over_quiet", "barrier, one busy neighbour / none", Target::AtMost(2.0))],
    },
    Benchmark {
        name: "barrier",
        arguments: &["--nodes", "2", "--neighbours", "2"],
        figures: &[
            figure("barrier_over_quiet", "barrier, two busy neighbours / none", Target::AtMost(2.0)),
            figure("barrier_us_mean", "barrier, two busy neighbours, mean (us)", Target::None),
        ],
    },
    Benchmark {
        name: "lock",
        arguments: &["--nodes", "2", "--neighbours", "1"],
        figures: &[figure("handoff_over_quiet", "lock handed over, one busy neighbour / none", Target::AtMost(2.0))],
    },
    Benchmark {
        name: "lock",
        arguments: &["--nodes", "2", "--neighbours", "2"],
        figures: &[figure("handoff_over_quiet", "lock handed over, two busy neighbours / none", Target::AtMost(2.0))],
    },
    Benchmark {
        name: "speed",
        arguments: &[],
        figures: &[
            figure("turns_per_s_share_of_best", "turns under a lock: no option / best options", Target::AtLeast(0.8)),
            figure("handovers_per_s_share_of_best", "contended lock: no option / best options", Target::AtLeast(0.8)),
            figure("read_gb_per_s_share_of_limit", "reading 256 MiB, no option / copying", Target::AtLeast(0.6)),
            figure("matmul_1024_ms_share_of_limit", "matmul 1024: 2 threads / no option", Target::AtLeast(1.0)),
            figure("matmul_512_ms_share_of_limit", "matmul 512: 2 threads / no option", Target::AtLeast(0.97)),
            figure("sort_4194304_ms_share_of_limit", "sort 4,194,304: 2 threads / no option", Target::AtLeast(0.92)),
            figure("sort_262144_ms_share_of_limit", "sort 262,144: 2 threads / no option", Target::AtLeast(0.75)),
            figure("jacobi_ms_share_of_limit", "Jacobi: 2 threads / no option", Target::AtLeast(0.88)),
            figure("read_fault_us_default", "remote read fault, no option (us)", Target::None),
            figure("read_fault_us_share_of_limit", "remote read fault: floor of memory / no option", Target::None),
            figure("false_sharing_us_share_of_best", "false sharing: best options / no option", Target::None),
        ],
    },
    Benchmark {
        name: "auto",
        arguments: &[],
        figures: &[
            figure("turns_per_s_auto_share", "turns under a lock: auto / best fixed", Target::AtLeast(0.91)),
            figure("handovers_per_s_auto_share", "contended lock: auto / best fixed", Target::AtLeast(0.91)),
            figure("read_gb_per_s_auto_share", "reading 256 MiB: auto / best fixed", Target::AtLeast(0.91)),
            figure("matmul_512_ms_auto_share", "matmul 512: best fixed / auto", Target::AtLeast(0.91)),
            figure("matmul_1024_ms_auto_share", "matmul 1024: best fixed / auto", Target::AtLeast(0.91)),
            figure("sort_262144_ms_auto_share", "sort 262,144: best fixed / auto", Target::AtLeast(0.91)),
            figure("sort_4194304_ms_auto_share", "sort 4,194,304: best fixed / auto", Target::AtLeast(0.91)),
            figure("jacobi_ms_auto_share", "Jacobi: best fixed / auto", Target::AtLeast(0.91)),
            figure("false_sharing_us_auto_share", "false sharing: best fixed / auto", Target::AtLeast(0.91)),
        ],
    },
    Benchmark {
        name: "jacobi",
        arguments: &[],
        figures: &[
            figure("threads_over_nodes", "Jacobi: 2 threads / 2 nodes over tcp", Target::None),
            figure("alone_over_1_node", "Jacobi: one thread without Trellis / one node", Target::AtLeast(0.99)),
            figure("pages_in", "Jacobi: pages fetched", Target::None),
        ],
    },
    Benchmark {
        name: "jacobi",
        arguments: &["--neighbours", "1"],
        figures: &[figure(
            "threads_over_nodes",
            "Jacobi: 2 threads / 2 nodes, both beside a busy neighbour",
            Target::AtLeast(0.8),
        )],
    },
    Benchmark {
        name: "psort",
        arguments: &[],
        figures: &[
            figure("sort_ms_1_node", "psort of 262,144 integers, 1 node (ms)", Target::None),
            figure("two_nodes_over_one", "psort, 2 nodes / 1 node", Target::AtMost(0.9)),
            figure("program_ms_1_node", "the same with start and end of the program, 1 node (ms)", Target::None),
            figure("program_ms_2_nodes", "the same with start and end of the program, 2 nodes (ms)", Target::None),
        ],
    },
    Benchmark {
        name: "lock",
        arguments: &["--nodes", "2"],
        figures: &[
            figure("reacquire_ns_mean", "lock taken again and given back (ns)", Target::None),
            figure("reacquire_messages", "messages of re-acquired locks", Target::AtMost(0.0)),
            figure("handoff_us_p50", "lock handed to a waiting node (us)", Target::None),
        ],
    },
    Benchmark {
        name: "start",
        arguments: &["--nodes", "2"],
        figures: &[
            figure("run_ms_p50", "run of a program that joins and leaves, 2 nodes (ms)", Target::AtMost(40.0)),
            figure("processes_ms_p50", "two processes that only start (ms)", Target::None),
        ],
    },
    Benchmark {
        name: "hosts",
        arguments: &["--hosts", "4"],
        figures: &[
            figure(
                "beyond_login_ms",
                "first line of a program on 4 hosts, beyond ssh's logins (ms)",
                Target::AtMost(600.0),
            ),
            figure("login_ms_p50", "one login to each of 4 hosts (ms)", Target::None),
            figure("vanished_s", "a host is cut off: the others end with its name (s)", Target::AtMost(11.0)),
        ],
    },
    Benchmark {
        name: "hosts",
        arguments: &["--hosts", "16", "--rounds", "5"],
        figures: &[
            figure("beyond_login_ms", "first line of a program on 16 hosts, beyond ssh's logins (ms)", Target::None),
            figure("login_ms_p50", "one login to each of 16 hosts (ms)", Target::None),
        ],
    },
    Benchmark {
        name: "hosts",
        arguments: &["--hosts", "16", "--rounds", "5", "--tree"],
        figures: &[figure("beyond_login_ms", "the same with `--tree` (ms)", Target::None)],
    },
    Benchmark {
        name: "slurm",
        arguments: &[],
        figures: &[
            figure(
                "srun_over_mpi",
                "srun of 4 tasks that join and leave / of 4 that start and end MPICH",
                Target::AtMost(1.5),
            ),
            figure("srun_ms_p50", "srun of 4 tasks that join and leave (ms)", Target::None),
            figure("srun_true_ms_p50", "srun of 4 tasks that do nothing (ms)", Target::None),
        ],
    },
    Benchmark {
        name: "idle",
        arguments: &["--nodes", "2"],
        figures: &[figure("cpu_percent_max", "idle cluster, busiest node (% of one core)", Target::Below(1.0))],
    },
    Benchmark {
        name: "memory",
        arguments: &["--nodes", "2"],
        figures: &[
            figure("bytes_per_untouched_page_max", "bookkeeping per untouched page (B)", Target::AtMost(32.0)),
            figure("memory_per_touched_byte", "memory per byte of the region written (B)", Target::AtMost(1.1)),
        ],
    },
    Benchmark {
        name: "matmul",
        arguments: &["--size", "1024", "--rounds", "1", "--set", "coherence=dynamic(forward)"],
        figures: &[
            figure("seconds_1_node_p50", "matmul 1024x1024 ijk, 1 node (s)", Target::None),
            figure("speedup", "matmul 1024x1024 ijk, 1 node / 2 nodes", Target::AtLeast(1.9)),
        ],
    },
    Benchmark {
        name: "matmul",
        arguments: &["--size", "512", "--set", "coherence=dynamic(forward)"],
        figures: &[
            figure("seconds_1_node_p50", "matmul 512x512 ijk, 1 node (s)", Target::None),
            figure("speedup", "matmul 512x512 ijk, 1 node / 2 nodes", Target::AtLeast(1.5)),
        ],
    },
    Benchmark {
        name: "matmul",
        arguments: &["--size", "256", "--set", "coherence=dynamic(forward)"],
        figures: &[
            figure("seconds_1_node_p50", "matmul 256x256 ijk, 1 node (s)", Target::None),
            figure("speedup", "matmul 256x256 ijk, 1 node / 2 nodes", Target::None),
        ],
    },
    Benchmark {
        name: "producer-consumer",
        arguments: &["--pages", "1", "--rounds", "3"],
        figures: &[
            figure("lock_us_p50", "producer-consumer, 1 page, lock (us for an item)", Target::None),
            figure("test_and_set_us_p50", "the same with test-and-set (us)", Target::None),
            figure("lock_over_test_and_set", "lock / test-and-set, time", Target::AtMost(0.38)),
            figure("lock_packets", "packets of an item, lock", Target::None),
            figure("lock_over_test_and_set_packets", "lock / test-and-set, packets", Target::AtMost(0.36)),
        ],
    },
    Benchmark {
        name: "links",
        arguments: &["--rounds", "1"],
        figures: &[
            figure("udp_read_us_p50", "remote read fault over udp (us)", Target::None),
            figure("udp_over_tcp", "remote read fault, udp / tcp", Target::AtMost(1.2)),
            figure("shm_read_us_p50", "remote read fault over shm (us)", Target::None),
            figure("shm_floor_us", "round trip through shared memory + local fault (us)", Target::None),
            figure("shm_over_floor", "read fault over shm / floor", Target::AtMost(1.6)),
            figure("shm_rest_us", "the same: copies, protocol, threads that see a message (us)", Target::None),
            figure("tcp_rest_us", "read fault over tcp: the same (us)", Target::None),
        ],
    },
    Benchmark {
        name: "sealed",
        arguments: &[],
        figures: &[
            figure("sealed_over_plain", "remote read fault over tcp, sealed / plain frames", Target::AtMost(1.3)),
            figure(
                "sealed_over_plain_gb_per_s",
                "reading in order at 10 Gbit/s, sealed / plain frames",
                Target::AtLeast(0.9),
            ),
        ],
    },
    Benchmark {
        name: "links",
        arguments: &[FABRIC, "tcp", "--rounds", "1"],
        figures: &[
            figure("fabric_read_us_p50", "remote read fault over fabric, provider tcp (us)", Target::None),
            figure("fabric_over_tcp", "remote read fault, fabric with provider tcp / tcp", Target::None),
        ],
    },
    Benchmark {
        name: "consistency",
        arguments: &[],
        figures: &[
            figure(
                "false_sharing_invalidate_us",
                "2 nodes, alternate words of 1,000 pages, hlrc(invalidate) (us)",
                Target::None,
            ),
            figure("false_sharing_adaptive_us", "the same, hlrc(adaptive) (us)", Target::None),
            figure("ivy_over_hlrc", "the same, ivy / the fastest hlrc", Target::AtLeast(3.0)),
            figure("sparse_mib_per_second", "16 MiB, one byte in eight, a barrier (MiB/s)", Target::AtLeast(150.0)),
            figure("diff_us_p50", "diff of a page, 1 % changed in one place (us)", Target::AtMost(0.3)),
            figure("diff_apart_us_p50", "the same, bytes that lie apart (us)", Target::None),
            figure("barrier_over_link_rtt", "barrier with nothing stored / link round trip", Target::AtMost(1.5)),
            figure("cached_barrier_us_more", "the same with 16,384 pages cached: more (us)", Target::AtMost(12.0)),
            figure(
                "handoff_over_link_rtt",
                "lock handed to a waiting node, with its data / link round trip",
                Target::AtMost(1.3),
            ),
            figure("busy_over_idle_home", "read fault, home computes / home idle", Target::AtMost(3.0)),
            figure("update_round_us", "256 pages stored, a barrier, read: update (us a round)", Target::None),
            figure("invalidate_over_update", "the same, invalidate / update", Target::AtLeast(1.5)),
            figure("first_store_us", "first store to a fetched page in an interval (us)", Target::AtMost(1.2)),
            figure("first_store_faults", "trips to user space for these stores", Target::AtMost(0.0)),
        ],
    },
    Benchmark {
        name: "delay",
        arguments: &["--nodes", "2"],
        figures: &[
            figure("plain_writes_per_page", "two nodes write one page: stores per transfer", Target::None),
            figure("delay_over_plain", "the same, with delay / without", Target::AtLeast(100.0)),
        ],
    },
    Benchmark {
        name: "forward",
        arguments: &[],
        figures: &[
            // The barriers around a series send a few messages that are counted with it or not, by chance.
            figure("one_hop_messages_more", "owner one hop away: messages more than the least", Target::AtMost(1.05)),
            figure("after_messages_more", "the same at the next read", Target::AtMost(0.05)),
        ],
    },
    Benchmark {
        name: REPRODUCE,
        arguments: &["kv", "table6.1", "--stores", "redis"],
        figures: &[
            figure("stack_full_us", "stack test, full, -O2, 2.75 ms per call (us)", Target::AtMost(25_000.0)),
            figure("heap_line_us", "heap test, cached, 2.75 ms per call (us)", Target::AtMost(6_000.0)),
            figure(
                "producer_consumer_line_us",
                "producer and consumer, one process, line (us)",
                Target::AtMost(10_000.0),
            ),
            figure("producer_consumer_page_us", "the same, page (us)", Target::AtMost(10_000.0)),
            figure("two_processes_us", "two processes, 2.75 ms per call (us)", Target::AtMost(300_000.0)),
            figure("two_processes_calls", "calls of each of the two", Target::AtMost(100.0)),
            figure("heap_line_loopback_us", "heap test, cached, with release, loopback (us)", Target::AtMost(100.0)),
            figure("heap_line_loopback_calls", "its calls", Target::AtMost(1.0)),
        ],
    },
    Benchmark {
        name: REPRODUCE,
        arguments: &["kv", "figure6.1"],
        figures: &[
            figure("instructions_full_growth", "more LLVM instructions at -O0, full (share)", Target::AtMost(0.10)),
            figure("instructions_heap_growth", "the same, heap", Target::AtMost(0.15)),
        ],
    },
    Benchmark {
        name: "checks",
        arguments: &[],
        figures: &[
            figure("heap_private_ns_max", "a check of mode heap, private data (ns an access)", Target::AtMost(0.25)),
            figure("line_private_ns_max", "a check of mode line, private data (ns an access)", Target::AtMost(0.25)),
            figure("line_cached_ns_max", "a check of mode line, cached data (ns an access)", Target::AtMost(0.5)),
        ],
    },
    Benchmark {
        name: REPRODUCE,
        arguments: &["kv", "figure2.6", "--stores", "redis,embedded"],
        figures: &[figure("ycsb_a_throughput_ratio", "YCSB A: front end / Redis", Target::AtLeast(0.9))],
    },
    Benchmark {
        name: REPRODUCE,
        arguments: &["vismi", "table3", "--nodes", "2", "--runs", "5"],
        figures: &[
            figure("lu_ratio", "LU 2048x2048: speed-up of 2 nodes / of 2 threads", Target::AtLeast(0.95)),
            figure("barnes_ratio", "Barnes 32768 bodies: the same", Target::AtLeast(0.90)),
            figure("fft_ratio", "FFT 2^20 points: the same", Target::AtLeast(0.75)),
            figure("radix_ratio", "Radix 8M keys: the same", Target::AtLeast(0.60)),
            figure("ocean_ratio", "SOR 2048x2048: the same", Target::AtLeast(0.93)),
            figure("lu_efficiency", "LU: efficiency of 2 nodes (ViSMI, 4 nodes: 0.975)", Target::AtLeast(0.975)),
            figure("barnes_efficiency", "Barnes: efficiency of 2 nodes (ViSMI, 4 nodes: 0.82)", Target::AtLeast(0.82)),
            figure("fft_efficiency", "FFT: efficiency of 2 nodes (ViSMI, 4 nodes: 0.65)", Target::AtLeast(0.65)),
            figure("radix_efficiency", "Radix: efficiency of 2 nodes (ViSMI, 4 nodes: 0.55)", Target::AtLeast(0.55)),
            figure("measuring_share_max", "measuring where the time goes, at most (share)", Target::Below(0.01)),
        ],
    },
    Benchmark {
        name: "stored-words",
        // Each way takes minutes with the text of the documentation, 4 GiB through 256 MiB.
        arguments: &["--bytes", "512MiB", "--cache", "128MiB"],
        figures: &[
            figure("memory_seconds", "word count, 512 MiB of text, all in memory (s)", Target::None),
            figure("durable_seconds", "the same in 128 MiB, pages in embedded-durable (s)", Target::None),
            figure("redis_seconds", "the same in 128 MiB, pages in Redis (s)", Target::None),
            figure("swap_seconds", "the same in 128 MiB, kernel swap (s)", Target::None),
            figure("mapped_seconds", "the same in 128 MiB, mapped file (s)", Target::None),
            figure("redis_over_swap", "pages in Redis / kernel swap", Target::Below(1.0)),
            figure("durable_over_swap", "pages in embedded-durable / kernel swap", Target::Below(1.0)),
        ],
    },
    Benchmark {
        name: "switch",
        arguments: &["--switch", BPF],
        figures: &[
            figure("veth_us_p50", "READ of 4 KiB, bare pair of interfaces (us)", Target::None),
            figure("read_64_us_p50", "READ of 64 B, switch bpf (us)", Target::None),
            figure("read_4k_us_p50", "READ of 4 KiB, switch bpf (us)", Target::None),
            figure("read_4k_over_veth", "READ of 4 KiB, switch bpf / bare pair", Target::AtMost(1.10)),
            figure("in_kernel_us_p50", "READ of 4 KiB, memory server in the kernel (us)", Target::None),
            figure("in_kernel_over_read_4k", "READ of 4 KiB, server in the kernel / process", Target::AtMost(0.6)),
            figure("update_us_p50", "UPDATE granted by the switch (us)", Target::None),
            figure("update_over_read_4k", "UPDATE granted by the switch / READ of 4 KiB", Target::AtMost(1.25)),
            figure("directory_over_read_4k", "with a directory service / with the switch as one", Target::AtLeast(1.9)),
            figure("full_table_over_read_4k", "READ, 1 million redirects / empty table", Target::AtMost(1.15)),
            figure("requests_per_second", "READs of 64 B, 32 at the same time (1/s)", Target::None),
            figure("rack_up_seconds", "42 clients, 42 servers: until they are up (s)", Target::AtMost(5.0)),
            figure("rack_unanswered", "42 x 1,200 READs of 4 KiB: without an answer", Target::AtMost(0.0)),
            figure("rack_reads_per_second", "42 x 1,200 READs of 4 KiB (1/s)", Target::None),
            figure("failover_gap_ms_max", "failover: longest gap once it is known (ms)", Target::AtMost(10.0)),
            figure("migration_lost", "64 MiB move: requests without an answer", Target::AtMost(0.0)),
            figure("migration_wrong", "64 MiB move: wrong answers", Target::AtMost(0.0)),
            figure("migration_slowest_ms", "64 MiB move: slowest request (ms)", Target::AtMost(50.0)),
            figure("pages_migration_lost", "64 MiB of pages move: requests without an answer", Target::AtMost(0.0)),
            figure("pages_migration_wrong", "64 MiB of pages move: wrong answers", Target::AtMost(0.0)),
            figure("pages_migration_slowest_ms", "64 MiB of pages move: slowest request (ms)", Target::AtMost(50.0)),
        ],
    },
    Benchmark {
        name: "switch",
        arguments: &["--switch", "nft", "--rootless"],
        figures: &[
            figure("read_4k_us_p50", "READ of 4 KiB, switch nft (us)", Target::None),
            figure("read_4k_over_veth", "READ of 4 KiB, switch nft / bare pair", Target::AtMost(1.25)),
            figure("update_over_read_4k", "UPDATE granted by the switch nft / READ", Target::AtMost(1.25)),
            figure("rack_unanswered", "nft: 42 x 1,200 READs: without an answer", Target::AtMost(0.0)),
            figure("failover_gap_ms_max", "nft, failover: longest gap once it is known (ms)", Target::AtMost(10.0)),
            figure("migration_lost", "nft, 64 MiB move: requests without an answer", Target::AtMost(0.0)),
            figure("migration_wrong", "nft, 64 MiB move: wrong answers", Target::AtMost(0.0)),
            figure("migration_slowest_ms", "nft, 64 MiB move: slowest request (ms)", Target::AtMost(50.0)),
            figure(
                "pages_migration_lost",
                "nft, 64 MiB of pages move: requests without an answer",
                Target::AtMost(0.0),
            ),
            figure("pages_migration_wrong", "nft, 64 MiB of pages move: wrong answers", Target::AtMost(0.0)),
            figure(
                "pages_migration_slowest_ms",
                "nft, 64 MiB of pages move: slowest request (ms)",
                Target::AtMost(50.0),
            ),
        ],
    },
    Benchmark {
        name: "switch",
        arguments: &["--switch", "user", "--rootless"],
        figures: &[
            figure("read_4k_us_p50", "READ of 4 KiB, switch user (us)", Target::None),
            figure("read_4k_over_veth", "READ of 4 KiB, switch user / bare pair", Target::None),
            figure("update_over_read_4k", "UPDATE granted by the switch user / READ", Target::AtMost(1.25)),
            figure("rack_unanswered", "user: 42 x 1,200 READs: without an answer", Target::AtMost(0.0)),
            figure("failover_gap_ms_max", "user, failover: longest gap once it is known (ms)", Target::AtMost(10.0)),
            figure("migration_lost", "user, 64 MiB move: requests without an answer", Target::AtMost(0.0)),
            figure("migration_wrong", "user, 64 MiB move: wrong answers", Target::AtMost(0.0)),
            figure("migration_slowest_ms", "user, 64 MiB move: slowest request (ms)", Target::AtMost(50.0)),
            figure(
                "pages_migration_lost",
                "user, 64 MiB of pages move: requests without an answer",
                Target::AtMost(0.0),
            ),
            figure("pages_migration_wrong", "user, 64 MiB of pages move: wrong answers", Target::AtMost(0.0)),
            figure(
                "pages_migration_slowest_ms",
                "user, 64 MiB of pages move: slowest request (ms)",
                Target::AtMost(50.0),
            ),
        ],
    },
    Benchmark {
        name: "remote-paging",
        // Each touch of the mapped file waits for a disk.
        arguments: &["--switch", BPF, "--touches", "4096"],
        figures: &[
            figure(
                "remote_veth_work_over_memory",
                "4 x the cache, in order, computing, bare pair / all local",
                Target::AtMost(2.5),
            ),
            figure("remote_bpf_work_over_memory", "the same through switch bpf / all local", Target::AtMost(2.5)),
            figure("remote_bpf_scan_over_memory", "in order, only reading, switch bpf / all local", Target::None),
            figure("remote_bpf_update_over_memory", "in order, only changing, switch bpf / all local", Target::None),
            figure("remote_bpf_touch_over_memory", "here and there, switch bpf / all local", Target::None),
            figure("swap_work_over_memory", "in order, computing, kernel swap / all local", Target::None),
            figure("swap_scan_over_memory", "in order, only reading, kernel swap / all local", Target::None),
            figure("swap_touch_over_memory", "here and there, kernel swap / all local", Target::None),
            figure("mapped_work_over_memory", "in order, computing, mapped file / all local", Target::None),
            figure("mapped_touch_over_memory", "here and there, mapped file / all local", Target::None),
        ],
    },
    Benchmark {
        name: REPRODUCE,
        arguments: &["bluebridge", "figure5", "--switch", BPF],
        figures: &[
            figure("read_us_p50", "READ of 4 KiB without a fault, switch bpf (us)", Target::None),
            figure("fault_us_p50", "fault whose page is read through the switch (us)", Target::None),
            figure("fault_over_read", "the same / READ, catcher handler", Target::AtMost(1.6)),
            figure("fault_signal_over_read", "the same / READ, catcher signal", Target::AtMost(1.6)),
            figure("fault_in_kernel_over_read", "fault, server in the kernel / READ, process", Target::AtMost(1.0)),
            figure("fault_directory_over_switch", "fault with / without a directory service", Target::None),
        ],
    },
    Benchmark {
        name: CHECK,
        arguments: &["swarm", "--protocol", "dynamic(forward)", "--seeds", "5000"],
        figures: &[figure("call_steps_per_second", "simulator, one core: steps per second", Target::AtLeast(1e6))],
    },
    Benchmark {
        name: CHECK,
        arguments: &[
            "scale",
            "--protocol",
            "dynamic(forward)",
            "--workload",
            "uniform",
            "--nodes",
            "1024",
            "--operations",
            // 10,000 for each node.
            "10240000",
        ],
        figures: &[figure("call_seconds", "simulator, 1,024 nodes x 10,000 operations (s)", Target::Below(60.0))],
    },
    Benchmark {
        name: CHECK,
        arguments: &["explore", "--protocol", "dynamic(forward)", "--nodes", "3", "--pages", "2", "--operations", "2"],
        figures: &[figure("states_per_second", "explorer: states per second", Target::AtLeast(300_000.0))],
    },
    Benchmark {
        name: CHECK,
        arguments: &["litmus", "--simulated", "--runs", "1000000"],
        figures: &[
            figure("runs_per_second", "litmus in the simulator: runs per second", Target::AtLeast(100_000.0)),
            figure("forbidden", "forbidden outcomes", Target::AtMost(0.0)),
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_on_the_right_side() {
        assert!(Target::AtMost(1.5).is_met(1.5) && !Target::AtMost(1.5).is_met(1.51));
        assert!(Target::AtLeast(0.6).is_met(0.6) && !Target::AtLeast(0.6).is_met(0.59));
        assert!(!Target::Below(1.0).is_met(1.0));
        for target in [Target::AtMost(1.0), Target::AtLeast(1.0), Target::Below(1.0), Target::None] {
            assert!(!target.is_met(f64::NAN), "{target}");
        }
    }

    #[test]
    fn every_call_is_there_once() {
        let mut titles: Vec<String> = TARGETS.iter().map(Benchmark::title).collect();
        titles.sort_unstable();
        let all = titles.len();
        titles.dedup();
        assert_eq!(titles.len(), all, "{titles:?}");
    }
}
