// Turns the runtime's error codes into base::Error.
#pragma once

namespace trireme::cuda {

/// Throws unavailable, or exhausted for a lack of memory, with `what` and the runtime's words unless `status`
/// (a cudaError_t) is success.
void check_cuda(int status, const char* what);
/// The same for the launch just made.
void check_launch(const char* kernel);

}  // namespace trireme::cuda
