"""Results in words, tables, JSON and drawings; it reads Timelines, whoever made them.

comparison     Comparison: plans side by side, and its verdict
answers        what each command says of what its verb returned
answer         Answer, and how it is printed
table          tables for a terminal
rows           a table that narrow ones show too
words          sentences of the page
json           what --json prints
page           the HTML page
figures        the numbers of its figures
spans          spans made small for it
svg            one plan's step, drawn
steps          how many each plan took to a loss, as a search reads it
map            plans over bandwidths, drawn
trace          a trace for Perfetto
notebook       pictures of a timeline, and results that name what they were asked of
printed        results that print as the command line says them
record         a comparison as a file
sound          what holds of every such file, whoever wrote it
manifest       what a run is, written before it begins
environment    where and how a result was made
setting        what numbers about a step need besides a Timeline
trained        what a training came to
verdict        what verify found
arguments      options that commands share
given          checks of what a command was given
files          files that a command writes
failure        whatever ends a command, as one sentence
progress       what a command tells while it works
"""
