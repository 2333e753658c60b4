"""Collectives as data, and what codecs make of vectors; nothing here moves a byte.

A new collective is a function of the number of ranks that returns a Schedule, and a name in `algorithms`; a new codec
is a Spec in `codec`, whose kernel is in the room of kernels.

    schedule      Hop, Schedule: who sends which part to whom, step by step
    rings         rings, and everybody to everybody (`pairwise`)
    trees         trees to and from rank 0
    doubling      partners at distance 1, 2, 4, ...
    layers        nodes and what is between them; butterflies
    algorithms    all of them by name, and which of them a collective goes by
    interpreter   a schedule carried out on plain numbers: the oracle
    loads         the work of its hops: bytes, elements coded and added
    streams       sparse vectors, and the messages that carry them
    codec         Spec: what each codec is, how many bytes it makes
    differences   codecs of what differs from what was said before, and which cannot be such
    elias         expected bits of Elias' code, for qsgd
    lowrank       shapes of factors, for powersgd
    factors       when factors of a gradient are smaller than it
    rows          how much room a rank has for codings
    plugins       Registry: codecs, kernels, collectives and recipes, ours and others'
    offered       what a plugin offers of codecs, looked at
"""
