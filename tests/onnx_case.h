// One ONNX backend case: load the model, feed each data set, compare with the expected outputs.
#pragma once

#include <string>

#include "base/text/json.h"

namespace trireme::tests {

/// {"case", "path", "opset", "ops": ["Conv", "ai.onnx.ml:Scaler", ...], "value_kinds": [...]} read from the
/// file alone.
base::Json describe_case(const std::string& model_path);

/// describe_case and "status": pass, fail, refused (the importer or compiler says unsupported), with a
/// "reason". Tolerances are those of the ONNX backend runner (rtol 1e-3, atol 1e-7) unless data.json
/// beside the model says others. Never throws. On another device than the CPU there is "host": operators that
/// ran on the host there, "" for none.
base::Json run_case(const std::string& model_path, const std::string& device = "cpu");

}  // namespace trireme::tests
