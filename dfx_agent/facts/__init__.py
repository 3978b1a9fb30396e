"""What is known about each rank at one instant: the contract between readers and judges.

Code that reads files, clocks, /proc or stacks runs before this point. Facts are frozen values, so a
judge draws the same conclusion from them on another machine, later, and in a test.
"""
