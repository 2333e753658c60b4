"""A training from its first step, or a checkpoint, to its end; a loop of one's own by `apply`.

one process of a run
    session        Session: a task and its weights, on which plans run
    assembly       a Rank from a task, a graph and a Program; all of them in one thread
    execution      one run of one plan
    evaluations    the held-out loss of its weights on the way
    training       Training: what is asked of a run
    result         RunResult: what came of it
    weights        first and last weights, as files
    heap           the process's memory
    apply          data parallelism in a loop of one's own
how ranks meet and end
    world          the store at which they meet
    listener       the socket at which rank 0 listens
    torchrun       ranks that somebody else launched
    preflight      whether these are about to do the same
    directory      DIR of --out
    room           what its checkpoints need on a disk
    halt           signals: where all ranks stop
while it runs
    reporting      what each rank says of itself, and what is told of it: step, loss, time left
    heartbeat      where each lane is, once a second
    checksums      digests of weights, once in a while
    divergence     whether replicas have the same weights
    memory_trace   what a rank allocates, over time
ranks that die and come back
    failover       a server's part is played by another process
    cast           who plays which part
    deaths         what processes tell each other of them
    takeover       how far a part is that is taken over
    rejoin         a worker that was started again
    admission      the round at which it enters, which all agree on
    presence       who is over
"""
