"""What CPU time do the scheduler and HTTP take for each token of a stream?

tiny-lm in f32 answers streams of /v1/completions, or with `--chat` of /v1/chat/completions, in this process; a process
of its own reads them. The figures are CPU times of threads, which other programs on the machine change little: of the
thread of the service without the time in its compiled programs (the scheduler), and of the event loop and all other
threads of Python (HTTP: events, JSON, sockets, text from tokens). A step draws one token for each stream.
"""
