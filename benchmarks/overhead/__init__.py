"""What do a call, a step and another size cost beside what is computed?

A step is one tiny layer more. Binding is what the first run at a new size takes more than the second.
"""
