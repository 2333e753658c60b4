"""Program: what each rank does, which the simulator and the worker both read; Timeline: what came of it.

the Program
    program       Program, Role, Lane, Segment
    instruction   Instruction and all acts
    space         tensors that acts work on, kinds of collectives
    layout        Bucket, Coding, Parcel
    shares        the fraction of a step that each worker's round makes
    scaling       factors and bounds of gradients
    update_units  pieces that are updated as one tensor
    verify        the rules that every Program keeps
    play          a Program played with tokens: whether it ends
how it goes on
    gate          instructions that start together
    flight        what an instruction has in flight
    settled       what of it a round applies before anything else
    alike         acts that do the same for several microbatches
    absence       what is left out while a rank is away
    stall         which rank holds up the others
    versions      the versions of a server's buckets
    ledger        Merge: what entered a bucket, and how stale it was
what came of it
    timeline      Timeline, Span, Breakdown
    spans         spans as columns
    breakdown     a step's time by what it was spent on
    held_out      losses of held-out samples on the way: the best, and when they end a run
"""
