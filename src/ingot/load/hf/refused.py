"""Language models of transformers that no template can describe, and the part of each that is missing."""

REFUSED = {
    "blt": "its tokens are bytes, in patches whose lengths another model chooses",
    "cpmant": "the biases of its scores depend on segments of the text",
    "diffllama": "its attention is the difference of two",
    "doge": "its scores have biases that are computed from the values",
    "dory": "it runs some of its layers several times",
    "hrm_text": "it runs its layers several times, at two rates",
    "hy_v4": "its layers read and write several streams (hyper-connections)",
    "moshi": "its tokens are several codes of audio at a time",
    "musicgen": "its tokens are several codes of audio at a time",
    "musicgen_melody": "its tokens are several codes of audio at a time",
    "prophetnet": "it predicts several tokens at a time, by attention in several streams",
    "reformer": "its attention selects keys by hashes",
    "xlm": "a token attends to the tokens after it, too",
    "xlnet": "a token attends to the tokens after it, too",
    "xmod": "its layers have an adapter for each language of a text",
}
