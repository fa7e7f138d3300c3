// Files and batches of the OpenAI API over HTTP.
#include "serve/jobs/jobs_api.h"

#include <fcntl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/files/file.h"
#include "base/utf8.h"
#include "data/rows/byte_stream.h"
#include "data/store/store.h"
#include "serve/infer/request_json.h"
#include "serve/jobs/multipart.h"
#include "serve/models/text_model.h"
#include "serve/openai/list_query.h"
#include "serve/openai/openai_error.h"

namespace trireme::serve {
namespace {

using base::Json;

constexpr std::string_view kFiles = "/v1/files", kBatches = "/v1/batches";
constexpr size_t kMostWaiting = 64, kMostName = 256, kMostModels = 64;
constexpr size_t kMostModelName = 256;  // longer than that of any file

http::Response ok_json(const Json& json) { return http::json_response(200, json.dump()); }

/// The rest of a path after `first`: "" or "/ID…"; nothing for another path.
std::optional<std::string_view> rest_of(std::string_view path, std::string_view first) {
  if (!path.starts_with(first)) return std::nullopt;
  path.remove_prefix(first.size());
  while (path.ends_with('/')) path.remove_suffix(1);
  if (!path.empty() && path.front() != '/') return std::nullopt;
  return path;
}

/// A page of a list, starting after the object whose id is `after`.
template <class Object>
Json list_of(const std::vector<Object>& all, std::string_view query) {
  const int64_t limit = page_of(query);
  const std::string after = query_value(query, "after");
  auto at = all.begin();
  if (!after.empty()) {
    at = std::find_if(all.begin(), all.end(), [&](const Object& o) { return o.id == after; });
    base::require(at != all.end(), "after: no object has the id '", after.substr(0, 64), "'");
    ++at;
  }
  Json data = Json::array();
  const auto end = at + std::min<int64_t>(limit, all.end() - at);
  Json first, last;
  for (auto one = at; one != end; ++one) {
    data.push_back(one->json());
    if (first.is_null()) first = one->id;
    last = one->id;
  }
  return Json::object({{"object", "list"},
                       {"data", std::move(data)},
                       {"first_id", std::move(first)},
                       {"last_id", std::move(last)},
                       {"has_more", end != all.end()}});
}

http::Response not_allowed(const char* methods) {
  http::Response refusal = openai_error(405, "Method Not Allowed");
  refusal.headers.emplace_back("Allow", methods);
  return refusal;
}

std::string text_member(const Json& json, const char* name) {
  const Json* member = json.find(name);
  if (member == nullptr || !member->is_string())
    throw MemberError(base::ErrorCode::invalid_argument, name, "expected a string");
  return member->as_string();
}

/// Locks the directory, because two servers would otherwise process the same batches.
batch::PosixFile locked(const std::string& directory) {
  batch::make_directories(directory);
  batch::PosixFile file(directory + "/lock", O_RDWR | O_CREAT);
  if (!file.try_lock())
    base::fail(base::ErrorCode::unavailable, "--files '", directory,
               "': another server keeps its files there");
  return file;
}

}  // namespace

JobsApi::JobsApi(const FilesOptions& options, const KserveCore& core, const OpenAiApi& api,
                 const base::Env& env)
    : core_(core),
      lock_(locked(options.files)),
      files_(options.files + "/files", options.files + "/batches", options.files_limit.bytes),
      batches_({.directory = options.files + "/batches", .window_rows = options.batch_requests}, files_, api,
               env),
      threads_(1, kMostWaiting) {}

bool JobsApi::takes(std::string_view path) {
  return rest_of(path, kFiles).has_value() || rest_of(path, kBatches).has_value();
}

void JobsApi::stop() {
  threads_.stop();
  batches_.stop();
}

void JobsApi::handle(http::Request&& request, http::Reply reply) {
  struct Given {
    http::Request request;
    http::Reply reply;
  };
  const auto given = std::make_shared<Given>(Given{std::move(request), std::move(reply)});
  try {
    threads_.submit([this, given] {
      http::Response response;
      try {
        response = answer(given->request);
      } catch (const base::Error& error) {
        response = openai_error(error);
      } catch (const std::exception&) {
        response = openai_error(500, "out of memory");
      }
      given->reply.send(std::move(response));
    });
  } catch (const base::Error& error) {
    given->reply.send(openai_error(error));
  }
}

std::string JobsApi::tenant_of(const http::Request& request) const {
  const Tenants& tenants = core_.tenants();
  // It is stored on disk, so it must hold no secret.
  return tenants.names_by_header() ? tenants.owner_of(request.header(tenants.header())) : std::string();
}

http::Response JobsApi::answer(const http::Request& request) {
  const Caller caller{.header = [&](const std::string& name) { return request.header(name); },
                      .is_counted = true};
  if (core_.rules().judge_before_reading(Category::inference, caller) != Access::allowed)
    return openai_error(401, "Unauthorized", "invalid_api_key");
  if (const auto rest = rest_of(request.path, kFiles)) return files(request, *rest);
  return batches(request, rest_of(request.path, kBatches).value_or(std::string_view()));
}

http::Response JobsApi::files(const http::Request& request, std::string_view rest) {
  const std::string tenant = tenant_of(request);
  const bool is_get = request.method == "GET" || request.method == "HEAD";
  if (rest.empty()) {
    if (request.method == "POST") return upload(request);
    if (!is_get) return not_allowed("GET, POST");
    std::vector<StoredFile> all = files_.list(tenant);
    const std::string purpose = query_value(request.query, "purpose");
    if (!purpose.empty()) std::erase_if(all, [&](const StoredFile& f) { return f.purpose != purpose; });
    return ok_json(list_of(all, request.query));
  }
  constexpr std::string_view kContent = "/content";
  rest.remove_prefix(1);
  const bool wants_content = rest.ends_with(kContent);
  if (wants_content) rest.remove_suffix(kContent.size());
  const std::string id = http::percent_decode(rest);
  if (wants_content) return is_get ? content(id, tenant) : not_allowed("GET");
  if (is_get) return ok_json(files_.find(id, tenant).json());
  if (request.method != "DELETE") return not_allowed("GET, DELETE");
  files_.remove(id, tenant);
  return ok_json(Json::object({{"id", id}, {"object", "file"}, {"deleted", true}}));
}

http::Response JobsApi::upload(const http::Request& request) {
  const std::vector<FormPart> parts = parse_form(request.header("Content-Type"), request.body.view());
  const FormPart* file = nullptr;
  std::string purpose;
  for (const FormPart& part : parts) {
    if (part.name == "file") file = &part;
    if (part.name == "purpose") purpose = part.content;
  }
  if (file == nullptr) throw MemberError(base::ErrorCode::invalid_argument, "file", "the form has none");
  if (purpose != "batch")
    throw MemberError(base::ErrorCode::unsupported, "purpose",
                      "expected \"batch\", found '" + purpose.substr(0, 40) + "'");
  base::require(file->filename.size() <= kMostName && base::is_utf8(file->filename),
                "file: its name is no text of at most ", kMostName, " bytes");
  return ok_json(
      files_.add(file->filename, purpose, tenant_of(request), file->content, core_.wall_s()).json());
}

http::Response JobsApi::content(const std::string& id, const std::string& tenant) const {
  const StoredFile file = files_.find(id, tenant);
  http::Response response;
  response.headers.emplace_back("Content-Type", "application/octet-stream");
  if (file.bytes == 0) return response;
  // The mapping stays until the last byte is sent, even if the file is deleted meanwhile.
  const auto mapped = base::MappedFile::open(files_.path_of(id));
  response.body.emplace_back(mapped->text(), mapped);
  return response;
}

http::Response JobsApi::batches(const http::Request& request, std::string_view rest) {
  const std::string tenant = tenant_of(request);
  const bool is_get = request.method == "GET" || request.method == "HEAD";
  if (rest.empty()) {
    if (request.method == "POST") return create(request);
    return is_get ? ok_json(list_of(batches_.list(tenant), request.query)) : not_allowed("GET, POST");
  }
  constexpr std::string_view kCancel = "/cancel";
  rest.remove_prefix(1);
  if (rest.ends_with(kCancel)) {
    rest.remove_suffix(kCancel.size());
    if (request.method != "POST") return not_allowed("POST");
    return ok_json(batches_.cancel(http::percent_decode(rest), tenant).json());
  }
  return is_get ? ok_json(batches_.find(http::percent_decode(rest), tenant).json()) : not_allowed("GET");
}

namespace {

/// The models of a file that is read as one of JSON lines. The job that answers them refuses all others, so
/// nothing depends on whether it reads each line alike.
std::set<std::string> named_models(std::string_view text, bool has_adapters) {
  constexpr std::string_view kMark = "\xef\xbb\xbf";  // that files of some editors begin with
  std::set<std::string> models;
  if (text.starts_with(kMark)) text.remove_prefix(kMark.size());
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view one = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    try {
      const Json json = request_json(one);
      const Json* body = json.is_object() ? json.find("body") : nullptr;
      const Json* model = body != nullptr && body->is_object() ? body->find("model") : nullptr;
      if (model == nullptr || !model->is_string()) continue;
      const std::string& name = model->as_string();
      const std::string_view base = has_adapters ? split_model_name(name).base : std::string_view(name);
      if (base.size() <= kMostModelName) models.emplace(base);
    } catch (const base::Error&) {
      continue;  // an invalid line is reported in the error file
    }
    base::require(models.size() <= kMostModels, "the file names more than ", kMostModels, " models");
  }
  return models;
}

}  // namespace

/// The requests of a file are made on behalf of the batch's creator, who must therefore have access to all
/// models that they name.
std::set<std::string> JobsApi::models_of(const http::Request& request, const BatchRecord& wanted) const {
  const Caller caller{.header = [&](const std::string& name) { return request.header(name); },
                      .is_counted = true};
  const std::string path = files_.path_of(files_.find(wanted.input_file, wanted.tenant).id);
  base::require(data::packing_of(*data::store_of(path)->open(path)) == data::Packing::none,
                "input_file_id: the file is packed, and batches have lines of JSON");
  const bool has_adapters = !wanted.endpoint.starts_with("/v1/embeddings");
  std::set<std::string> models = named_models(base::MappedFile::open(path)->text(), has_adapters);
  for (const std::string& model : models) {
    if (core_.rules().judge(Category::inference, model, caller) != Access::allowed)
      base::fail(base::ErrorCode::not_found, "The model `", model, "` does not exist");
  }
  return models;
}

/// At most 16 pairs of short texts, as in the API, because they are stored as long as the batch.
Json metadata_of(const Json& json) {
  constexpr size_t kMostPairs = 16, kMostKey = 64, kMostValue = 512;
  const Json* metadata = json.find("metadata");
  if (metadata == nullptr || metadata->is_null()) return {};
  const auto is_short = [](const base::JsonMember& m) {
    return m.key.size() <= kMostKey && m.value.is_string() && m.value.as_string().size() <= kMostValue;
  };
  const bool fits = metadata->is_object() && metadata->size() <= kMostPairs &&
                    std::all_of(metadata->as_object().begin(), metadata->as_object().end(), is_short);
  if (!fits)
    throw MemberError(base::ErrorCode::invalid_argument, "metadata",
                      "expected at most 16 pairs of short strings");
  return *metadata;
}

http::Response JobsApi::create(const http::Request& request) {
  const Json json = request_json(request.body.view());
  base::require(json.is_object(), "expected a JSON object, found ", json.type_name());
  BatchRecord wanted{.endpoint = text_member(json, "endpoint"),
                     .input_file = text_member(json, "input_file_id"),
                     .window = text_member(json, "completion_window"),
                     .tenant = tenant_of(request)};
  wanted.metadata = metadata_of(json);
  wanted.models = models_of(request, wanted);
  return ok_json(batches_.create(std::move(wanted)).json());
}

}  // namespace trireme::serve
