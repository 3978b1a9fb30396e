"""What is known of each rank at one instant: the seam between who reads and who concludes.

Everything that reads files, clocks, /proc or stacks comes before it. Facts are frozen values: what
is concluded from them is the same on another machine, at another time, and in a test by hand.
"""
