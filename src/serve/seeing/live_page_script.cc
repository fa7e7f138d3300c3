// The script of the page at `/`: reads /metrics each second, draws rates, percentiles, sizes; sends the form.
#include "serve/seeing/live_page.h"

namespace trireme::serve {
namespace {

// In two parts, because compilers need not accept literals above 64 KiB. Texts from the server are only ever
// set as text, never as markup.
constexpr std::string_view kMetrics = R"js('use strict';
const $=id=>document.getElementById(id);
const BUSY='trireme_instance_busy_seconds_total';
const WINDOW=10,POINTS=60;            // seconds that rates and percentiles look back; points of a line
let access={},history=[],index=[],chosen=null,lines={};
function headers(more){return Object.assign({},access,more||{})}
async function ask(path,options){
  const answer=await fetch(path,Object.assign({cache:'no-store'},options,{headers:headers(
    options&&options.headers)}));
  if(!answer.ok&&!(options&&options.any))throw Error(answer.status+' '+(await answer.text()).slice(0,300));
  return answer;
}
// Text form 0.0.4 -> [{name,labels,value}]; label values may hold escaped quotes.
function parse(text){
  const out=[],label=/([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;
  for(const line of text.split('\n')){
    const m=/^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line);
    if(!m)continue;
    const labels={};
    for(const l of (m[2]||'').matchAll(label))
      labels[l[1]]=l[2].replace(/\\(.)/g,(_,c)=>c==='n'?'\n':c);
    out.push({name:m[1],labels,value:m[3]==='+Inf'?Infinity:Number(m[3])});
  }
  return out;
}
// One scrape by model: {at, models: {key: {name, version, values, buckets}}, texts: {name: values}, values}.
function scrape(text){
  const shot={at:performance.now()/1e3,models:{},texts:{},values:{}};
  for(const s of parse(text)){
    const l=s.labels;
    if(l.model_name&&l.le===undefined&&!l.finished_reason)
      (shot.texts[l.model_name]||(shot.texts[l.model_name]={}))[s.name.slice('vllm:'.length)]=s.value;
    if(!l.model||!l.version){
      if(l.le===undefined)shot.values[s.name]=(shot.values[s.name]||0)+s.value;
      continue;
    }
    const key=l.model+'/'+l.version;
    const m=shot.models[key]||(shot.models[key]={name:l.model,version:l.version,values:{},buckets:{}});
    if(l.le!==undefined){
      const b=m.buckets[s.name]||(m.buckets[s.name]=[]);
      b.push([l.le==='+Inf'?Infinity:Number(l.le),s.value]);
    }else if(l.quantile===undefined){
      m.values[s.name]=(m.values[s.name]||0)+s.value;
      if(l.kind)m.values[s.name+':'+l.kind]=s.value;
      if(s.name===BUSY)m.instances=(m.instances||0)+1;
    }
  }
  return shot;
}
function change(now,then,name){return (now.values[name]||0)-(then&&then.values[name]||0)}
// Observations of each bucket alone, between two scrapes.
function bucketChange(now,then,name){
  const a=now.buckets[name+'_bucket']||[],b=then&&then.buckets[name+'_bucket']||[];
  let before=0;
  return a.map(([bound,n],i)=>{
    const all=n-(b[i]?b[i][1]:0),own=all-before;
    before=all;
    return [bound,own];
  });
}
function quantile(buckets,q){
  const total=buckets.reduce((s,b)=>s+b[1],0);
  if(!total)return NaN;
  let before=0,low=0;
  for(const [bound,n] of buckets){
    if(n>0&&before+n>=q*total)return bound===Infinity?low:low+(bound-low)*(q*total-before)/n;
    before+=n;
    if(bound!==Infinity)low=bound;
  }
  return low;
}
function number(x,digits){
  if(x===undefined||Number.isNaN(x))return '–';
  if(digits===undefined&&x!==0&&Math.abs(x)<.1)return x.toPrecision(2);
  if(Math.abs(x)>=1e4)return Math.round(x).toLocaleString('en');
  return x.toFixed(digits===undefined?(Math.abs(x)<10?2:1):digits);
}
function bytes(x){
  let unit=0;
  while(x>=1024&&unit<4){x/=1024;++unit}
  return number(x,unit?1:0)+' '+['B','KiB','MiB','GiB','TiB'][unit];
}
const ms=x=>number(x*1e3),took=x=>Number.isNaN(x)?'–':ms(x)+' ms';
// What the table and the panel show of one model.
function figures(now,then,seconds){
  const d=(name)=>change(now,then,name),per=(name)=>d(name)/seconds;
  const runs=d('nv_inference_exec_count'),latency=bucketChange(now,then,'trireme_request_duration_seconds');
  const mean=phase=>{
    const n=d('trireme_'+phase+'_duration_seconds_count');
    return n?d('trireme_'+phase+'_duration_seconds_sum')/n:NaN;
  };
  const filled=d('trireme_input_elements_total'),rows=d('nv_inference_count');
  return {requests:per('nv_inference_request_success'),rows:per('nv_inference_count'),
    failed:per('nv_inference_request_failure'),p50:quantile(latency,.5),p95:quantile(latency,.95),
    p99:quantile(latency,.99),batch:runs?rows/runs:NaN,
      waiting:now.values.nv_inference_pending_request_count||0,
    queue:mean('queue'),input:mean('compute_input'),infer:mean('compute_infer'),output:mean('compute_output'),
    busy:now.instances?per(BUSY)/now.instances:NaN,
    waste:filled?d('trireme_padded_elements_total')/filled:NaN,
    hits:per('nv_cache_num_hits_per_model'),weights:now.values['trireme_model_memory_bytes:weights']||0,
    scratch:now.values['trireme_model_memory_bytes:scratch']||0,
    cost:now.values.nv_inference_count?now.values.trireme_cost_per_million_inferences:undefined,
    hung:now.values.trireme_instances_hung||0,
    batches:bucketChange(now,then,'trireme_batch_rows'),lengths:bucketChange(now,then,
      'trireme_queue_length')};
}
)js";

constexpr std::string_view kView = R"js(
const NS='http://www.w3.org/2000/svg';
function svg(name,set,parent){
  const e=document.createElementNS(NS,name);
  for(const k in set)e.setAttribute(k,set[k]);
  if(parent)parent.append(e);
  return e;
}
// Bars of a distribution: [[bound, count]], with the numbers in words for those who do not see them.
function bars(place,buckets,unit){
  const shown=buckets.filter((b,i)=>b[1]>0||buckets.slice(i+1).some(c=>c[1]>0));
  const most=Math.max(1,...shown.map(b=>b[1])),total=shown.reduce((s,b)=>s+b[1],0);
  const words=total?shown.filter(b=>b[1]).map(b=>'up to '+b[0]+': '+Math.round(100*b[1]/total)+' %').join(
    ', '):'nothing';
  const e=svg('svg',{viewBox:'0 0 320 96',role:'img','aria-label':unit+', '+words});
  shown.forEach((b,i)=>{
    const w=Math.min(64,320/shown.length),h=76*b[1]/most;
    svg('rect',{x:i*w+2,y:80-h,width:Math.max(1,w-4),height:h,class:'bar'},e);
    const t=svg('text',{x:i*w+w/2,y:93,'text-anchor':'middle'},e);
    t.textContent=b[0]===Infinity?'more':b[0];
  });
  place.replaceChildren(e);
}
// Lines over the last minute: {name: [values]}; the latest values are named in the lines' colours.
function plot(place,series,unit){
  const all=Object.values(series).flat().filter(Number.isFinite),most=all.length?Math.max(...all):NaN;
  const last=Object.entries(series).map(([k,v])=>[k,number(v[v.length-1])]);
  const e=svg('svg',{viewBox:'0 0 320 96',role:'img','aria-label':unit+', now '+last.map(
    l=>l.join(' ')).join(', ')});
  Object.values(series).forEach((values,n)=>{
    const points=values.map((v,i)=>[318-(values.length-1-i)*316/(POINTS-1),80-(most>0?66*v/most:0)]).filter(
      p=>Number.isFinite(p[1]));
    svg('polyline',{points:points.map(p=>p[0].toFixed(1)+','+p[1].toFixed(1)).join(' '),
      class:'line line'+n},e);
    const end=points[points.length-1];
    if(end)svg('circle',{cx:end[0].toFixed(1),cy:end[1].toFixed(1),r:2,class:'key'+n},e);
  });
  svg('text',{x:0,y:8},e).textContent=Number.isNaN(most)?'nothing in the last minute':'up to '+number(
    most)+' '+unit;
  const keys=svg('text',{x:0,y:93},e);
  last.forEach(([k,v],n)=>{
    const t=svg('tspan',{class:'key'+n},keys);
    t.textContent=(last.length>1?k:'now')+' '+v+(n+1<last.length?'   ':'');
    t.style.whiteSpace='pre';
  });
  place.replaceChildren(e);
}
function cell(row,text,kind){
  const td=row.insertCell();
  td.textContent=text;
  if(kind)td.className=kind;
  return td;
}
const COLUMNS=['requests','rows','p50','p95','p99','batch','waiting','busy','failed','memory','cost'];
// A row of figures, or of the reason why there are none; a model may change from one to the other.
function rowOf(key,name,version,kind){
  const old=$('models').querySelector('tr[data-key="'+CSS.escape(key)+'"]');
  if(old&&old.dataset.kind===kind)return old;
  const row=document.createElement('tr');
  row.dataset.key=key;
  row.dataset.kind=kind;
  row.toggleAttribute('aria-current',key===chosen);
  const th=document.createElement('th'),button=document.createElement('button');
  th.scope='row';
  button.type='button';
  button.textContent=name;
  button.addEventListener('click',()=>choose(key,name,version));
  th.append(button);
  row.append(th);
  cell(row,version);
  if(kind==='figures')for(const c of COLUMNS)cell(row,'–').dataset.of=c;
  else cell(row,'','why').colSpan=COLUMNS.length;
  if(old)old.replaceWith(row);
  else $('models').append(row);
  return row;
}
function show(row,f){
  const text={requests:number(f.requests,1),rows:number(f.rows,1),p50:ms(f.p50),p95:ms(f.p95),p99:ms(f.p99),
    batch:number(f.batch),waiting:number(f.waiting,0),
    busy:Number.isNaN(f.busy)?'–':number(100*f.busy,0)+' %',failed:number(f.failed,1),
    memory:bytes(f.weights+f.scratch),cost:f.cost===undefined?'–':number(f.cost)};
  if(f.hung)text.busy=f.hung+' hung';
  row.className=f.hung?'bad':'';
  for(const td of row.cells){
    const own=text[td.dataset.of];
    if(own!==undefined&&td.textContent!==own)td.textContent=own;
  }
}
const reasonOf=entry=>[entry.state||'not loaded',entry.reason].filter(Boolean).join(': ');
const isFault=entry=>entry.state==='UNAVAILABLE'&&entry.reason!=='unloaded';
function unusable(key,entry){
  const row=rowOf(key,entry.name,entry.version||'','reason');
  row.className=isFault(entry)?'bad':'';
  if(row.cells[2].textContent!==reasonOf(entry))row.cells[2].textContent=reasonOf(entry);
}
function remember(key,f){
  const l=lines[key]||(lines[key]={requests:[],p50:[],p95:[],p99:[]});
  for(const k in l){
    l[k].push(k==='requests'?f[k]:1e3*f[k]);
    if(l[k].length>POINTS)l[k].shift();
  }
  return l;
}
// What a language model does now.
function textFacts(now,then,seconds){
  if(!now)return {};
  const per=name=>number((now[name]-(then&&then[name]||0))/seconds,1);
  return {'texts under way':number(now.num_requests_running,0),'texts waiting':number(
    now.num_requests_waiting,0),'pages held':number(100*now.kv_cache_usage_perc,0)+' %',
    'tokens of answers/s':per('generation_tokens_total'),'tokens of prompts/s':per('prompt_tokens_total')};
}
function detail(f,l,texts){
  plot($('rate'),{'requests/s':l.requests},'requests/s');
  plot($('latency'),{p50:l.p50,p95:l.p95,p99:l.p99},'ms');
  bars($('batches'),f.batches,'Rows of a batch');
  bars($('lengths'),f.lengths,'Requests waiting');
  const facts={...texts,'mean time in the queue':took(f.queue),'gathering inputs':took(f.input),
    'model run':took(f.infer),'writing the answer':took(f.output),'answers from the cache':number(
      f.hits,1)+'/s',
    'padding in inputs':Number.isNaN(f.waste)?'–':number(100*f.waste,1)+' %',
    'weights':bytes(f.weights),'scratch memory':bytes(f.scratch)};
  const list=[];
  for(const k in facts){
    const dt=document.createElement('dt'),dd=document.createElement('dd');
    dt.textContent=k;dd.textContent=facts[k];
    list.push(dt,dd);
  }
  $('facts').replaceChildren(...list);
}
function whole(now,then,seconds){
  const v=now.values,cpu=change(now,then,'process_cpu_seconds_total')/seconds;
  const facts={'HTTP requests/s':number(change(now,then,'trireme_http_requests_total')/seconds,1),
    'connections':number(v.trireme_http_connections_open,0),'memory':bytes(v.process_resident_memory_bytes),
    'cores used':number(cpu),'machine busy':number(100*v.nv_cpu_utilization,0)+' %','up':uptime(
      v.trireme_uptime_seconds)};
  $('server').replaceChildren(...Object.entries(facts).map(([k,x])=>{
    const div=document.createElement('div'),dt=document.createElement('dt'),dd=document.createElement('dd');
    dt.textContent=k;dd.textContent=x;
    div.append(dt,dd);
    return div;
  }));
}
function uptime(s){
  return s<120?Math.round(s)+' s':s<7200?Math.round(s/60)+' min':s<172800?Math.round(
    s/3600)+' h':Math.round(s/86400)+' days';
}
function draw(){
  const now=history[history.length-1],then=history[0],seconds=Math.max(.2,now.at-then.at);
  whole(now,then,seconds);
  const served=new Set(),faults=[];
  let hung=0;
  for(const key in now.models){
    const m=now.models[key],f=figures(m,then.models[key]||m,seconds),
      row=rowOf(key,m.name,m.version,'figures'),l=remember(key,f);
    served.add(key);
    hung+=f.hung;
    show(row,f);
    if(!chosen)choose(key,m.name,m.version);
    if(chosen===key)detail(f,l,textFacts(now.texts[m.name],then.texts[m.name],seconds));
  }
  for(const e of index){
    const key=e.name+'/'+(e.version||'');
    if(e.state==='READY'||served.has(key))continue;
    unusable(key,e);
    served.add(key);
    if(isFault(e))faults.push(e.name);
    if(chosen===key)$('why').textContent=reasonOf(e);
  }
  for(const row of [...$('models').rows])if(!served.has(row.dataset.key))row.remove();
  if(chosen&&!served.has(chosen)){
    chosen=null;
    $('chosen').textContent='no model is loaded';
  }
  const hasFigures=chosen in now.models;
  $('panel').hidden=$('try').hidden=!hasFigures;
  if(hasFigures||!chosen)$('why').textContent='';
  const count=Object.keys(now.models).length;
  return {text:count+(count===1?' model version':' model versions')+(faults.length?', failed: '+faults.join(
    ', '):'')+(hung?', instances that hang: '+hung:''),bad:faults.length+hung>0};
}
let ticks=0,state='';
function say(text,bad){
  if(text===state)return;
  state=text;
  $('state').textContent=text;
  $('state').className=bad?'bad':'';
}
async function tick(){
  const start=performance.now();
  try{
    if(ticks++%5===0)index=await(await ask('/v2/repository/index',
      {method:'POST',body:'{}',headers:{'Content-Type':'application/json'}})).json();
    history.push(scrape(await(await ask('/metrics')).text()));
    while(history.length>2&&history[history.length-1].at-history[1].at>=WINDOW)history.shift();
    const models=draw(),ready=(await ask('/v2/health/ready',{any:true})).ok;
    say((ready?'ready':'not ready')+', '+models.text,!ready||models.bad);
  }catch(e){say('not reachable: '+e.message,true)}
  // A server of many models is asked less often: never more than a tenth of the time.
  setTimeout(tick,Math.max(1000,10*(performance.now()-start)));
}
)js";

constexpr std::string_view kForm = R"js(
// The form: one block of fields for each input of the model's metadata.
let metadata=null;
const WHOLE=/^U?INT(8|16|32|64)$/;
async function choose(key,name,version){
  chosen=key;
  for(const row of $('models').rows)row.toggleAttribute('aria-current',row.dataset.key===key);
  $('chosen').textContent=name+', version '+version;
  $('answer').textContent='';
  $('took').textContent='';
  metadata=null;
  $('fields').replaceChildren();
  if(!history.length||!(key in history[history.length-1].models))return;
  try{
    const found=await(await ask('/v2/models/'+encodeURIComponent(name)+'/versions/'+version)).json();
    if(chosen!==key)return;
    metadata=found;
    metadata.version=version;
    talk=[];
    $('fields').replaceChildren(...(isText()?[message()]:metadata.inputs.map(fields)));
  }catch(e){$('fields').textContent=e.message;metadata=null}
}
const isText=()=>metadata.platform==='trireme_text';
// A conversation with a language model: what was said, each answer as its tokens come.
let talk=[];
function message(){
  const set=document.createElement('fieldset'),data=document.createElement('textarea');
  data.id='data0';
  data.rows=3;
  labelled('message; the conversation goes on until another model is chosen',data,set);
  return set;
}
function conversation(answer){
  $('answer').textContent=talk.map(m=>m.role+': '+m.content).join('\n')+'\nassistant: '+answer;
}
// The events of a stream, each as JSON.
async function* events(body){
  const reader=body.getReader(),decoder=new TextDecoder();
  for(let text='';;){
    const {done,value}=await reader.read();
    if(done)return;
    text+=decoder.decode(value,{stream:true});
    for(let end;(end=text.indexOf('\n\n'))>=0;text=text.slice(end+2)){
      const data=text.slice(0,end).replace(/^data: /,'');
      if(data!=='[DONE]')yield JSON.parse(data);
    }
  }
}
// A model without a template continues what was typed.
async function begin(options){
  const post=(path,more)=>ask(path,{method:'POST',any:true,headers:{'Content-Type':'application/json'},
    body:JSON.stringify({...options,...more})});
  let answer=await post('/v1/chat/completions',{messages:talk,max_tokens:512});
  if(answer.status===400&&(await answer.clone().text()).includes('no chat template'))
    answer=await post('/v1/completions',{prompt:talk[talk.length-1].content,max_tokens:128});
  if(!answer.ok)throw Error(answer.status+' '+(await answer.text()).slice(0,300));
  return answer;
}
async function speak(){
  talk.push({role:'user',content:$('data0').value});
  const start=performance.now(),model=metadata.name;
  let text='',first=0,tokens=0;
  try{
    const answer=await begin({model,stream:true,stream_options:{include_usage:true}});
    for await(const chunk of events(answer.body)){
      if(chunk.error)throw Error(chunk.error.message);
      if(!metadata||metadata.name!==model)return;
      if(chunk.usage)tokens=chunk.usage.completion_tokens;
      const c=chunk.choices[0];
      if(!c)continue;
      first=first||performance.now();
      text+=(c.delta?c.delta.content:c.text)||'';
      conversation(text);
    }
    const seconds=(performance.now()-first)/1e3;
    $('took').textContent='first token in '+number(first-start)+' ms, '+tokens+' tokens, '+number(
      (tokens-1)/seconds,1)+'/s';
    talk.push({role:'assistant',content:text});
    $('data0').value='';
  }catch(e){
    talk.pop();
    throw e;
  }
}
function labelled(text,input,parent){
  const label=document.createElement('label');
  label.htmlFor=input.id;
  label.textContent=text;
  parent.append(label,input);
}
function fields(input,i){
  const set=document.createElement('fieldset'),legend=document.createElement('legend');
  legend.textContent=input.name+' '+input.datatype+' ['+input.shape.join(', ')+']';
  set.append(legend);
  const data=document.createElement('textarea');
  data.id='data'+i;
  data.rows=3;
  if(input.datatype==='BYTES'&&input.shape.length===1){
    data.value='three banks of oars';
    labelled('texts, one a line',data,set);
    return set;
  }
  const shape=document.createElement('input');
  shape.id='shape'+i;
  shape.value=JSON.stringify(input.shape.map(d=>d<0?1:d));
  labelled('shape',shape,set);
  data.value=input.datatype==='BYTES'?'"text"':input.datatype==='BOOL'?'true':'random';
  labelled('values: a JSON array, one value for all, or random',data,set);
  return set;
}
function values(input,text,shape){
  const count=shape.reduce((a,b)=>a*b,1);
  if(text.trim()==='random'){
    const whole=WHOLE.test(input.datatype);
    return Array.from({length:count},()=>whole?Math.floor(Math.random()*10):+Math.random().toFixed(4));
  }
  const given=JSON.parse(text);
  return Array.isArray(given)?given:Array(count).fill(given);
}
function body(){
  const inputs=metadata.inputs.map((input,i)=>{
    const text=$('data'+i).value;
    if(!$('shape'+i)){
      const data=text.split('\n').filter(t=>t!=='');
      return {name:input.name,datatype:input.datatype,shape:[data.length],data};
    }
    const shape=JSON.parse($('shape'+i).value);
    return {name:input.name,datatype:input.datatype,shape,data:values(input,text,shape)};
  });
  return JSON.stringify({inputs});
}
function brief(answer){
  return answer.outputs.map(o=>{
    const n=o.data.length,numbers=typeof o.data[0]==='number';
    let text=o.name+' '+o.datatype+' ['+o.shape.join(', ')+']\n  '+o.data.slice(0,12).map(
      v=>JSON.stringify(v)).join(', ');
    if(n>12)text+=', … ('+n+' values)';
    if(numbers&&n>12){
      const most=o.data.reduce((a,v,i)=>v>o.data[a]?i:a,0);
      text+='\n  largest: '+o.data[most]+' at '+most;
    }
    return text;
  }).join('\n');
}
async function send(event){
  event.preventDefault();
  if(!metadata)return;
  $('answer').className='';
  try{
    if(isText())return await speak();
    const text=body(),start=performance.now();
    const answer=await ask('/v2/models/'+encodeURIComponent(
      metadata.name)+'/versions/'+metadata.version+'/infer',
      {method:'POST',body:text,headers:{'Content-Type':'application/json'}});
    // NaN and Infinity are not JSON, but the protocol has them.
    const json=JSON.parse((await answer.text()).replace(/(?<=[\[,])(-?Infinity|NaN)(?=[\],])/g,'null'));
    $('took').textContent='answered in '+number(performance.now()-start)+' ms';
    $('answer').textContent=brief(json);
  }catch(e){
    $('took').textContent='';
    $('answer').className='bad';
    $('answer').textContent=e.message;
  }
}
$('form').addEventListener('submit',send);
$('access').addEventListener('change',()=>{
  access={};
  if($('header').value)access[$('header').value]=$('secret').value;
  ticks=0;
});
tick();
)js";

}  // namespace

std::string_view live_page_metrics_script() { return kMetrics; }
std::string_view live_page_view_script() { return kView; }
std::string_view live_page_form_script() { return kForm; }

}  // namespace trireme::serve
