"""A cluster on this machine: its devices, workers on them, what they measure and the plans that they run.

the emulated cluster
    network            opens a lab: namespaces, control groups, or loopback
    network_setup      a cluster as lines for `ip` and `tc`
    lab                Lab: an open one
    enter              how a process enters its device
    quota              control groups: quotas and memory limits
    keeper             the process that holds a lab and clears it away
    keeper_client      the launcher's end of it
    record             what a lab makes on the machine, written down first
    doctor             what this machine lacks for it
workers
    worker_group       WorkerGroup: asks all workers, hears all replies
    worker             one worker's pipes, log and progress
    serve              the worker's end: its verbs
    fork_server        the process of which workers are forked
    fork_client        the launcher's end of it
    lines              whole lines from pipes
    forward            signals passed on to workers
    spares             workers that may die, and come back
    failures           which worker failed, and of what
    links              which link is slow or cut
    monitor            what workers report while they run
    stragglers         which rank is slow
costs
    costing            measured costs where that is possible, else data sheets
    profiler           Profiler: what workers measure
    replies            what all ranks' replies say together
    link_costs         a Wiring fitted to what messages and collectives took
    link_rows          what ranks timed of these, as rows by size
    contention         what messages, collectives and computing cost each other
    timed_links        kept for some minutes
    launching          the cost of launching work on accelerators
    slowdowns          how much slower each rank is
    background_load    other work on the machine
    processor          which kind of processor it has
runs
    rehearsal          Rehearsal: a task on workers that run plan after plan
    comparison_run     plans predicted and run in turns
    train              one training
    limits             whether plans that fit do run; for benchmarks
    command            other programs on every device
"""
