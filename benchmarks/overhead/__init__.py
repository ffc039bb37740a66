"""What do a call, a step and another size cost, in addition to the computation?

A step is one tiny layer more. Binding is what the first run at a new size takes more than the second.
"""
