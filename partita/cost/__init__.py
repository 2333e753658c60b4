"""Core-seconds, seconds of waiting and bytes of what a Program does, measured or from data sheets; no clock here.

A new kind of act has its price in `demand` and what it allocates in `allocations`; a new kind of device is a data
sheet, which `datasheet` turns into seconds.

seconds
    costs          Costs: all that was measured or is in data sheets
    demand         what each act needs by them
    prices         the demands of one program's acts, where they stand in their lanes
    touch          passes over tensors
    passes         how many an act makes
    wiring         Wiring: messages and collectives
    rows           values between measured sizes
    rings          bytes that a ring sends
    launching      accelerators have two clocks
    cache          times of operators, kept on disk
    measurable     whether costs can be measured here
    naive          two predictors that a simulation has to beat
data sheets
    datasheet      Costs of a cluster that nobody measured
    kernels        seconds of kernels on accelerators
    winograd       those of 3 x 3 convolutions
    layouts        copies between layouts around convolutions
    fabric         NCCL's collectives
    between        the links and devices of a group of ranks
    unlike         devices that differ: their speeds
    sheets         each by its own sheet
bytes
    memory         the curve of live bytes, and its peak
    memory_curve   MemoryCurve
    allocations    what each instruction allocates and frees
    recording      AllocationLog: that, once for all microbatches that are alike
    lifetimes      when each value of a graph is alive
    scratch        temporary tensors
    convolutions   those of oneDNN's convolutions
    hops           those of collectives that go hop by hop
    workspaces     what operators take of a card
    allocator      what a caching allocator reserves; for benchmarks
"""
