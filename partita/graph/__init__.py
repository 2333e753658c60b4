"""Graph: the captured step as ATen operators, and what is derived from it without torch.

A new kind of operator is a rule in the `patterns_...` file of its kind, named in `patterns`.

the step as a value
    graph                  Graph, Parameter, Buffer, Optimizer
    operator               Operator, Ref: a call, what it reads and makes
    tensor                 Tensor: a shape that knows the batch, a stride, a dtype
    batch                  a graph for any number of samples -> for one
    text                   JSON, both ways
    checking               what holds of a graph in a file, whoever wrote it
    gc_pause               no garbage collection while large values are built
what each operator is
    pattern                Pattern: its named dimensions, and what dividing one does
    patterns               the pattern of each target
    formula                patterns in einsum's notation
    patterns_contractions  products, convolutions, attention, recurrence
    patterns_lookups       embeddings, gathers, likelihoods, pooling
    patterns_norms         normalisations, softmaxes, reductions
    patterns_pointwise     whatever divides along any dimension
    patterns_views         reshapes, slices, permutations
    contraction            rows, columns and depth of its products
    flops                  its FLOPs and the bytes that it moves
    signature              what its time depends on
which operators are alike
    kinds                  those that differ in names only
    repeats                repeated blocks, layers of a model
where the step is cut
    cuts                   legal cuts, and what is alive there
    homes                  the forward operator that each one moves with
    stages                 a graph divided into graphs
the step rewritten
    blocks                 blocks of the forward pass
    recompute              values that backward computes again
    recompute_rules        which operators those are, by rule
    precision              half precision
    products               gradients as products of factors
    statistics             what becomes of buffers
    fusing                 what a compiler makes one kernel of
"""
