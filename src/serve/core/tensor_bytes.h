// Bytes of a tensor as both wire forms of KServe carry them.
#pragma once

#include "http/message.h"
#include "serve/infer/wire_tensor.h"

namespace trireme::serve {

/// A tensor's wire bytes: its own memory, or the strings with their lengths.
http::BodyPart tensor_bytes(const WireTensor& tensor);

}  // namespace trireme::serve
