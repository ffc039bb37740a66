"""`python tests/kit/triton_client.py ADDRESS IN.npz OUT.npz`: NVIDIA's client of a server with the models of
tests/serve/test_infer.py, in a process of its own, because it is in a folder that no other test sees.

The results of `kinds` for the arrays of IN, with binary tensors and as JSON, and of `digits`, are written to OUT.
"""

import json
import sys

import ml_dtypes
import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype


def tensor(name: str, array: np.ndarray, is_binary: bool) -> triton.InferInput:
    """An input of a request; bf16 is given as f32."""
    array = array.astype(ml_dtypes.bfloat16) if name == "bf16" else array
    found = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    found.set_data_from_numpy(array, binary_data=is_binary)
    return found


def widened(array: np.ndarray) -> np.ndarray:
    """An array that .npz stores."""
    return array.astype(np.float32) if array.dtype == ml_dtypes.bfloat16 else array


def main(address: str, source: str, out: str) -> None:
    """Ask the server, and write its answers."""
    client = triton.InferenceServerClient(address)
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("kinds") and client.is_model_ready("kinds", "1")
    assert client.get_server_metadata()["name"] == "ingot"
    metadata = client.get_model_metadata("kinds")
    arrays = dict(np.load(source, allow_pickle=True))
    results = {}
    for is_binary in (True, False):
        inputs = [tensor(name, array, is_binary or name in ("f16", "bf16")) for name, array in arrays.items()]
        outputs = [triton.InferRequestedOutput(f"{name}_out", binary_data=is_binary) for name in arrays]
        answer = client.infer("kinds", inputs, outputs=outputs, request_id="7")
        assert answer.get_response()["id"] == "7"
        for name in arrays:
            results[f"{'binary' if is_binary else 'json'}:{name}"] = widened(answer.as_numpy(f"{name}_out"))
    image = np.linspace(0, 1, 192, dtype=np.float32).reshape(3, 1, 8, 8)
    results["digits"] = client.infer("digits", [tensor("image", image, True)]).as_numpy("probabilities")
    try:
        client.infer("digits", [tensor("image", image[:, :, :7], True)])
    except InferenceServerException as error:
        results["error"] = np.array(error.message())
    np.savez(out, metadata=np.array(json.dumps(metadata)), **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
