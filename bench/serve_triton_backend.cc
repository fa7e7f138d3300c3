// A backend for NVIDIA Triton that computes nothing: the peer of our identity models in bench/serve.py, which
// builds it as a shared library. It returns a matrix unchanged, and of tensors of more dimensions the first
// value of each row. This file declares the part of Triton's C interface that it uses.
#include <cstdint>
#include <cstring>

extern "C" {
struct TRITONSERVER_Error;
struct TRITONBACKEND_ModelInstance;
struct TRITONBACKEND_Request;
struct TRITONBACKEND_Response;
struct TRITONBACKEND_Input;
struct TRITONBACKEND_Output;

TRITONSERVER_Error* TRITONBACKEND_RequestInputByIndex(TRITONBACKEND_Request*, uint32_t,
                                                      TRITONBACKEND_Input**);
TRITONSERVER_Error* TRITONBACKEND_InputProperties(TRITONBACKEND_Input*, const char** name, int* type,
                                                  const int64_t** shape, uint32_t* rank, uint64_t* bytes,
                                                  uint32_t* buffers);
TRITONSERVER_Error* TRITONBACKEND_InputBuffer(TRITONBACKEND_Input*, uint32_t index, const void** at,
                                              uint64_t* bytes, int* memory, int64_t* memory_id);
TRITONSERVER_Error* TRITONBACKEND_ResponseNew(TRITONBACKEND_Response**, TRITONBACKEND_Request*);
TRITONSERVER_Error* TRITONBACKEND_ResponseOutput(TRITONBACKEND_Response*, TRITONBACKEND_Output**,
                                                 const char* name, int type, const int64_t* shape,
                                                 uint32_t rank);
TRITONSERVER_Error* TRITONBACKEND_OutputBuffer(TRITONBACKEND_Output*, void** at, uint64_t bytes, int* memory,
                                               int64_t* memory_id);
TRITONSERVER_Error* TRITONBACKEND_ResponseSend(TRITONBACKEND_Response*, uint32_t flags, TRITONSERVER_Error*);
TRITONSERVER_Error* TRITONBACKEND_RequestRelease(TRITONBACKEND_Request*, uint32_t flags);
__attribute__((visibility("default"))) TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance*, TRITONBACKEND_Request** requests, uint32_t count);
}

namespace {

constexpr uint32_t kFinal = 1, kReleaseAll = 1;
constexpr uint64_t kElementBytes = 4;  // FP32

struct Input {
  const int64_t* shape = nullptr;
  int type = 0;
  uint32_t rank = 0, buffers = 0;
  uint64_t bytes = 0;
  TRITONBACKEND_Input* handle = nullptr;
};

/// Copies the part of each row that the output takes, from an input that may lie in several buffers.
void copy_rows(const Input& input, char* to, uint64_t rows, uint64_t kept_bytes) {
  const uint64_t row_bytes = rows == 0 ? 0 : input.bytes / rows;
  uint64_t at = 0;  // offset in the input
  for (uint32_t i = 0; i < input.buffers; ++i) {
    const void* buffer = nullptr;
    uint64_t bytes = 0;
    int memory = 0;
    int64_t memory_id = 0;
    TRITONBACKEND_InputBuffer(input.handle, i, &buffer, &bytes, &memory, &memory_id);
    const char* from = static_cast<const char*>(buffer);
    for (uint64_t done = 0; done < bytes;) {
      const uint64_t row = (at + done) / row_bytes, within = (at + done) % row_bytes;
      const uint64_t rest = row_bytes - within < bytes - done ? row_bytes - within : bytes - done;
      if (within < kept_bytes) {
        const uint64_t wanted = kept_bytes - within < rest ? kept_bytes - within : rest;
        std::memcpy(to + row * kept_bytes + within, from + done, wanted);
      }
      done += rest;
    }
    at += bytes;
  }
}

void answer(TRITONBACKEND_Request* request) {
  Input input;
  const char* name = nullptr;
  TRITONBACKEND_RequestInputByIndex(request, 0, &input.handle);
  TRITONBACKEND_InputProperties(input.handle, &name, &input.type, &input.shape, &input.rank, &input.bytes,
                                &input.buffers);
  const auto rows = static_cast<uint64_t>(input.shape[0]);
  const bool is_image = input.rank > 2;
  const int64_t shape[2] = {input.shape[0], is_image ? 1 : input.shape[1]};
  const uint64_t kept_bytes = kElementBytes * static_cast<uint64_t>(shape[1]);
  TRITONBACKEND_Response* response = nullptr;
  TRITONBACKEND_Output* output = nullptr;
  void* to = nullptr;
  int memory = 0;
  int64_t memory_id = 0;
  TRITONBACKEND_ResponseNew(&response, request);
  TRITONBACKEND_ResponseOutput(response, &output, "y", input.type, shape, 2);
  TRITONBACKEND_OutputBuffer(output, &to, rows * kept_bytes, &memory, &memory_id);
  copy_rows(input, static_cast<char*>(to), rows, kept_bytes);
  TRITONBACKEND_ResponseSend(response, kFinal, nullptr);
  TRITONBACKEND_RequestRelease(request, kReleaseAll);
}

}  // namespace

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance*,
                                                       TRITONBACKEND_Request** requests, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) answer(requests[i]);
  return nullptr;
}
