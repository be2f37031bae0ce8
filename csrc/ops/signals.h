// Signals that come while an op works.
#pragma once

namespace softrank {

// Whether a signal handler of Python has raised something. No exception of Python can leave an op: the op raises
// RuntimeError, and Python's own follows as soon as Python goes on. Only Python's main thread has signals.
bool is_interrupted();

}  // namespace softrank
