// The fields of a job's model options: keys of the job file and flags of the command line.
#include "batch/model_options.h"

namespace trireme::batch {

void ModelOptions::fields(base::OptionList& f) {
  f.add("model", &model, "ONNX file, directory of a model, GGUF file, or zoo:NAME");
  f.add("task", &task, "auto, run, embed, classify, generate or score");
  f.add("input_columns", &columns, "model_input=column; other inputs take the column of their own name");
  f.add_choice("precision", &precision, {"f32", "bf16", "f16", "fp8"}, "operands of products");
  weights.fields(f);
  f.add("device", &device, "cpu, cuda, cuda:N, or emulated[:N]");
  f.add("threads", &threads, "threads of an instance; 0: all cores over the instances")
      .at_least(0)
      .at_most(4096);
  f.add("instances", &instances, "copies of the model that run side by side").at_least(1).at_most(1024);
  f.add("front_threads", &front_threads, "threads that tokenize texts and decode pictures; 0: chosen")
      .at_least(0)
      .at_most(4096);
  f.add("tp", &tp, "tensor-parallel ranks of an instance, or of each of its stages").at_least(1);
  f.add("ep", &ep, "as many as tp: those ranks share out whole experts; 1: each has a part of all of them")
      .at_least(1);
  f.add(
       "pp", &pp,
       "pipeline stages of an instance: ranks that each hold some of the layers, with the keys and values of "
       "a language model's")
      .at_least(1);
  f.add("batch_rows", &batch_rows, "rows of a batch at most; 0: chosen").at_least(0).at_most(kMostRows);
  f.add("window_rows", &window_rows,
        "rows among which those of like length batch together, and so the most of a batch; 0: chosen")
      .at_least(0)
      .at_most(kMostRows);
  f.add_choice("image_values", &image_values, {"off", "none", "unit", "inception", "imagenet"},
               "what the bytes of pictures become: as they are, 0 to 1, -1 to 1, or ImageNet's scaling");
  f.add(
      "labels", &labels,
      "task classify: file with the names of the classes, a line each or JSON; empty: the model's id2label");
  f.add("max_length", &max_length, "tokens of a text at most, the rest is cut; 0: what the model knows")
      .at_least(0);
  f.add("tokenizer", &tokenizer, "directory or file of the tokenizer; empty: the model's own");
  f.add("prompt", &prompt, "text around columns: {column} stands for its value; empty: the column alone");
  f.add("chat", &chat, "a prompt is what a user says: the chat template stands around it");
  f.add("system", &system, "with --chat: what the system says first");
  f.add("chat_template", &chat_template, "file of a chat template in Jinja; empty: the tokenizer's");
  f.add("max_tokens", &max_tokens, "tokens of an answer at most").at_least(1);
  f.add("temperature", &temperature, "of sampling; 0: the likeliest token").at_least(0);
  f.add("top_p", &top_p, "sample among the likeliest tokens of this share").at_least(0).at_most(1);
  f.add("top_k", &top_k, "sample among so many of the likeliest tokens; 0: all").at_least(0);
  f.add("seed", &seed, "of sampling; a row's draws do not depend on other rows").at_least(0);
  f.add("stop", &stop, "text that ends an answer, and is not part of it");
  f.add("adapter", &adapter, "task generate: directory of an adapter (LoRA) of the model");
  f.add("max_adapters", &max_adapters,
        "format openai: adapters of adapters/ in the model's directory, which lines name as model:adapter; "
        "0: none")
      .at_least(0);
  f.add("max_adapter_rank", &max_adapter_rank, "rank of such an adapter at most").at_least(1);
}

passes::Strategy ModelOptions::strategy() const {
  return {.tp = tp, .pp = pp, .ep = ep, .precision = {.compute = precision}, .weights = weights};
}

bool ModelOptions::stages_show(const std::string& of_task) const {
  const bool is_exact = device == "cpu" && precision != passes::Precision::fp8;
  return pp > 1 && !(is_exact && (tp == 1 || of_task == "generate"));
}

}  // namespace trireme::batch
