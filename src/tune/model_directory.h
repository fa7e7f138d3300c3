// A repository with the tuned model in it: its files by link, and the config.pbtxt of a candidate.
#pragma once

#include <string>

#include "tune/candidate.h"
#include "tune/subject.h"

namespace trireme::tune {

/// The config.pbtxt of a candidate: what the model's own said, with batching, instances and the parameters
/// that say how it runs in place of its own.
std::string config_text(const Subject& subject, const Candidate& candidate);

/// Throws invalid_argument for a model, as a path, that lies in what tuning writes: <out>/repository and
/// <out>/trial.
void require_elsewhere(const std::string& model, const std::string& out);

/// Writes <repository>/<name>/ with config.pbtxt and the files of the candidate's variant as version 1:
/// hard links, or copies where the file system has none. Then removes what was there.
void write_model_directory(const std::string& repository, const Subject& subject, const Candidate& candidate);

}  // namespace trireme::tune
