"""Plan -> Program, pass after pass: `lower` calls all others.

A new way to agree is a file beside `servers` or `averages`, which returns the Program of a Draft and says what of a
plan it cannot do (`..._gaps`); a new order of a pipeline's passes is a function in `schedules`.

what a rank computes
    lower             the passes in their order
    gaps              what none of them brings about yet
    coding_gaps       the same of codecs
    samples           Draft: who takes which samples, Load, F and B
    layout            which gradients travel together, where backward is cut
    phases            what a phase leaves for the next one
    coupled           optimizers whose tensors must stay together
    readers           who reads which weights
    recomputation     what backward computes again
    precision         half precision, masters
stages
    schedules         the orders of passes
    pipeline          who holds which stage and runs which microbatches
    stages            their instructions
every step: sums of gradients
    agreement         none, or all-reduces
    coding            what codecs add
    factors           factors in place of gradients
    norm              a bound on all gradients
    servers           servers that wait for all
    owners            which server holds which bucket
    tiers             servers above servers
    chain             servers whose state others have too
    async_servers     servers that do not wait for all
    async_workers     their workers
    push_pull         one bucket between a worker and such a server
    quorum            a server that goes on with some of its workers
    shared            workers that share the memory of their weights
workers that step alone
    local_updates     which of these a plan asks for
    averages          the mean of weights, now and then
    elastic           tied to a centre
    exchanges         with neighbours or drawn partners
    mixing_matrices   how much of whose weights
    pairs             two by two, whenever one asks
    final_round       what brings replicas together at the end
passes over a finished Program
    shards            state divided among ranks
    divided           what that makes of a role
    gathers           when weights are gathered for it
    ties              when buckets are summed that several stages hold
    ordering          lanes that choose which message goes first
    tictac            the order that a graph suggests
    negotiation       ranks that agree on what they sum next
    half_sums         long sums of fp16
    statistics        buffers that move once a minibatch
"""
